// Keys of the sort: places, and behind them what is out of range, which is reported. Constant: ID, the dtype of the index.

KERNEL(keys, KeysArgs, p) {
    for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < p.count; i += (i64)gridDim.x * blockDim.x) {
        const i64 named = p.index[i];
        const bool fits = (u64)named < (u64)p.size;
        if (!fits) report(p.faults, named, p.size);
        p.keys[i] = fits ? (u32)named : (u32)p.size;
    }
}
