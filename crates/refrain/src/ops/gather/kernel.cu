// Elements picked along an axis. Constants: UNIT; INDEX; ID, dtype of the index; RANK, the number of axes.

KERNEL(gather, GatherArgs, g) {
    const UNIT* x = g.x;
    const ID* index = g.index;
    UNIT* y = g.y;
    const INDEX step = (INDEX)gridDim.x * blockDim.x;
    for (INDEX at = (INDEX)blockIdx.x * blockDim.x + threadIdx.x; at < (INDEX)g.n; at += step) {
        i64 i = index[at];
        if ((u64)i >= (u64)g.size) report(g.faults, i, g.size);
        INDEX rest = at;
        u64 from = (u64)i * g.stride;
        #pragma unroll
        for (int d = RANK - 1; d >= 0; d--) {
            INDEX size = (INDEX)g.shape[d], q = rest / size;
            from += (u64)(rest - q * size) * g.strides[d];
            rest = q;
        }
        y[at] = (u64)i < (u64)g.size ? x[from] : filled<UNIT>::with(g.missing);
    }
}
