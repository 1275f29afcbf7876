// Columns of [outer, n, inner]. A block of 256 threads processes several neighbouring columns; the other threads
// process further elements of the same columns.

struct Columns {
    // Offset of the column's first element, and of its result in [outer, inner].
    i64 offset, result;
    // The thread's first element, and the distance to its next one.
    int start, step;
    bool live;
};

DEVICE Columns columns_of(const ColumnsAt& at) {
    const i64 n = at.n, inner = at.inner;
    const int shift = (int)at.shift, columns = 1 << shift;
    i64 across = (inner + columns - 1) >> shift, slab = blockIdx.x / across;
    i64 column = ((blockIdx.x - slab * across) << shift) + (threadIdx.x & (columns - 1));
    return {slab * n * inner + column, slab * inner + column, (int)(threadIdx.x >> shift), 256 >> shift, column < inner};
}

// Combines the values of all threads of a column; each of them gets the result. All threads of the block must take
// part.
template <typename S, typename F> DEVICE S merge_column(const Columns& c, S s, F merge) {
    __shared__ S all[256];
    all[threadIdx.x] = s;
    for (int d = c.step / 2; d > 0; d /= 2) {
        __syncthreads();
        if (c.start < d) all[threadIdx.x] = merge(all[threadIdx.x], all[threadIdx.x + d * (256 / c.step)]);
    }
    __syncthreads();
    return all[threadIdx.x & (256 / c.step - 1)];
}
