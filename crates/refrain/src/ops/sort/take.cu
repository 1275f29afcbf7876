// The first elements of each line, after a sort by bits: the entries of a line are adjacent, and in order.

KERNEL(sort_take, SortArgs, p) {
    const i64 step = (i64)gridDim.x * blockDim.x, all = p.all / p.n * p.keep;
    for (i64 at = (i64)blockIdx.x * blockDim.x + threadIdx.x; at < all; at += step) {
        const i64 line = at / p.keep, rank = at - line * p.keep;
        take(p, line, rank, p.entries[line * p.n + rank] - line * p.n);
    }
}
