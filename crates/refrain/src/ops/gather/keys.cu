// Keys of the sort: positions in y, followed by the entries that are out of range.
KERNEL(keys, Places, p) {
    const ID* index = p.index;
    const INDEX step = (INDEX)gridDim.x * blockDim.x;
    for (INDEX at = (INDEX)blockIdx.x * blockDim.x + threadIdx.x; at < (INDEX)p.entries; at += step) {
        i64 i = index[at];
        INDEX rest = at;
        u64 place = (u64)i * p.stride;
        #pragma unroll
        for (int d = RANK - 1; d >= 0; d--) {
            INDEX size = (INDEX)p.shape[d], q = rest / size;
            place += (u64)(rest - q * size) * p.strides[d];
            rest = q;
        }
        p.keys[at] = check(p, i) ? (u32)place : (u32)p.n;
    }
}
