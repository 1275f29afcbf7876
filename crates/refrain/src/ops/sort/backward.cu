// The gradient of sorted elements, at the positions that they came from. No two positions of a line are equal. Constants:
// OUT (dtype); ADD; ZERO, whether this pass sets all elements to zero.

KERNEL(sort_backward, SortBackwardArgs, p) {
    typedef arithmetic<OUT>::type C;
    const i64 step = (i64)gridDim.x * blockDim.x, first = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (ZERO) {
        for (i64 at = first; at < p.all; at += step) p.y[at] = from<OUT>((C)0);
        return;
    }
    for (i64 at = first; at < p.kept; at += step) {
        const i64 row = at / p.inner, column = at - row * p.inner, position = p.positions[at];
        // The positions are those that the operation wrote; one out of range has no element.
        if ((u64)position >= (u64)p.n) continue;
        put<ADD>(p.y + (row / p.keep * p.n + position) * p.inner + column, to<C>(p.d[at]));
    }
}
