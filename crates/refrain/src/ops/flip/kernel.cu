// Axes in another order: reversed, or rolled. Constants: UNIT; INDEX; RANK, the number of axes.

KERNEL(reorder, ReorderArgs, p) {
    const UNIT* x = p.x;
    UNIT* y = p.y;
    const INDEX step = (INDEX)gridDim.x * blockDim.x;
    for (INDEX at = (INDEX)blockIdx.x * blockDim.x + threadIdx.x; at < (INDEX)p.n; at += step) {
        INDEX rest = at, stride = 1;
        u64 from = 0;
        #pragma unroll
        for (int d = RANK - 1; d >= 0; d--) {
            INDEX size = (INDEX)p.shape[d], q = rest / size, i = rest - q * size;
            i = p.reversed[d] ? (INDEX)p.start[d] - i : (INDEX)p.start[d] + i;
            if (i >= size) i -= size;
            from += (u64)i * stride;
            stride *= size;
            rest = q;
        }
        y[at] = x[from];
    }
}
