// Slices picked along an axis: y[o, i, :] = x[o, index[i], :], where x has outer * size rows. Constants: UNIT, INDEX;
// ID, dtype of the index.

KERNEL(select, SelectArgs, p) {
    const INDEX count = (INDEX)p.count, width = (INDEX)p.width, n = (INDEX)p.outer * count * width;
    const INDEX step = (INDEX)gridDim.x * blockDim.x;
    for (INDEX at = (INDEX)blockIdx.x * blockDim.x + threadIdx.x; at < n; at += step) {
        INDEX row = at / width, column = at - row * width, o = row / count;
        i64 i = p.index[row - o * count];
        const bool fits = (u64)i < (u64)p.size;
        if (!fits && column == 0) report(p.faults, i, p.size);
        p.y[at] = fits ? p.x[((u64)o * p.size + i) * width + column] : filled<UNIT>::with(p.missing);
    }
}
