// Slices picked along an axis: y[o, i, :] = x[o, index[i], :], of x of outer * size rows. Constants: UNIT, INDEX;
// ID, the dtype of the index.

KERNEL select(const UNIT* x, const ID* index, UNIT* y, i64 outer, i64 size_, i64 count_, i64 width_, i64 missing,
              Faults faults) {
    const INDEX count = (INDEX)count_, width = (INDEX)width_, n = (INDEX)outer * count * width;
    const INDEX step = (INDEX)gridDim.x * blockDim.x;
    for (INDEX at = (INDEX)blockIdx.x * blockDim.x + threadIdx.x; at < n; at += step) {
        INDEX row = at / width, column = at - row * width, o = row / count;
        i64 i = index[row - o * count];
        const bool fits = (u64)i < (u64)size_;
        if (!fits && column == 0) faults.report(i, size_);
        y[at] = fits ? x[((u64)o * size_ + i) * width + column] : filled<UNIT>::with(missing);
    }
}
