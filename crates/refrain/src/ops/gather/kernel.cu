// Elements picked along an axis. Constants: UNIT; INDEX; ID, the dtype of the index; RANK, the number of
// axes.

struct Gather {
    u64 x, index, y;
    i64 n;
    // Of the axis in x: its size, and how far neighbours lie apart.
    i64 size, stride;
    u64 missing;
    Faults faults;
    // The index's shape, and the strides of x without those of the axis.
    i64 shape[RANK], strides[RANK];
};

KERNEL gather(const __grid_constant__ Gather g) {
    const UNIT* x = reinterpret_cast<const UNIT*>(g.x);
    const ID* index = reinterpret_cast<const ID*>(g.index);
    UNIT* y = reinterpret_cast<UNIT*>(g.y);
    const INDEX step = (INDEX)gridDim.x * blockDim.x;
    for (INDEX at = (INDEX)blockIdx.x * blockDim.x + threadIdx.x; at < (INDEX)g.n; at += step) {
        i64 i = index[at];
        if ((u64)i >= (u64)g.size) g.faults.report(i, g.size);
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
