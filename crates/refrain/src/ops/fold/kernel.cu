// Adds windows back to where they were cut: element l of y [outer, length, inner] is the sum of x [outer, count,
// inner, size] at (w, l - w * step), over all windows w that contain it, in order. Constants: ELEMENT, INDEX.

typedef arithmetic<ELEMENT>::type C;

KERNEL(fold, FoldArgs, p) {
    const INDEX n = (INDEX)p.n, length = (INDEX)p.length, inner = (INDEX)p.inner, count = (INDEX)p.count;
    const INDEX size = (INDEX)p.size, step = (INDEX)p.step, turn = (INDEX)gridDim.x * blockDim.x;
    for (INDEX at = (INDEX)blockIdx.x * blockDim.x + threadIdx.x; at < n; at += turn) {
        INDEX row = at / inner, i = at - row * inner, o = row / length, l = row - o * length;
        // The windows that begin after l - size and not after l.
        INDEX first = l < size ? 0 : (l - size) / step + 1, end = min(l / step + 1, count);
        C sum = (C)0;
        for (INDEX w = first; w < end; w++) {
            sum += to<C>(p.x[((u64)(o * count + w) * inner + i) * size + (l - w * step)]);
        }
        p.y[at] = from<ELEMENT>(sum);
    }
}
