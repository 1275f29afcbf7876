// Windows added back to where they were cut: place l of y [outer, length, inner] is the sum of x [outer, count,
// inner, size] at (w, l - w * step) over the windows w that it lies in, in order. Constants: ELEMENT, INDEX.

typedef arithmetic<ELEMENT>::type C;

KERNEL fold(const ELEMENT* x, ELEMENT* y, i64 n_, i64 length_, i64 inner_, i64 count_, i64 size_, i64 step_) {
    const INDEX n = (INDEX)n_, length = (INDEX)length_, inner = (INDEX)inner_, count = (INDEX)count_;
    const INDEX size = (INDEX)size_, step = (INDEX)step_, turn = (INDEX)gridDim.x * blockDim.x;
    for (INDEX at = (INDEX)blockIdx.x * blockDim.x + threadIdx.x; at < n; at += turn) {
        INDEX row = at / inner, i = at - row * inner, o = row / length, l = row - o * length;
        // The windows that begin after l - size and not after l.
        INDEX first = l < size ? 0 : (l - size) / step + 1, end = min(l / step + 1, count);
        C sum = (C)0;
        for (INDEX w = first; w < end; w++) {
            sum += to<C>(x[((u64)(o * count + w) * inner + i) * size + (l - w * step)]);
        }
        y[at] = from<ELEMENT>(sum);
    }
}
