// Pads a tensor with one value. Constants: UNIT; INDEX; RANK, the number of axes.

KERNEL(pad, PadArgs, p) {
    const UNIT* x = p.x;
    UNIT* y = p.y;
    const INDEX step = (INDEX)gridDim.x * blockDim.x;
    for (INDEX at = (INDEX)blockIdx.x * blockDim.x + threadIdx.x; at < (INDEX)p.n; at += step) {
        INDEX rest = at;
        u64 from = 0;
        bool inside = true;
        #pragma unroll
        for (int d = RANK - 1; d >= 0; d--) {
            INDEX size = (INDEX)p.shape[d], q = rest / size;
            // Before x, this wraps around to beyond its end.
            INDEX i = rest - q * size - (INDEX)p.before[d];
            inside = inside && i < (INDEX)p.size[d];
            from += (u64)i * p.strides[d];
            rest = q;
        }
        y[at] = inside ? x[from] : filled<UNIT>::with(p.value);
    }
}
