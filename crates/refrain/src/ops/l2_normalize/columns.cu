// Vectors of length 1 along columns. Constants: COMPUTE (the arithmetic), IN (dtype), BACKWARD, ADD.

#if BACKWARD
KERNEL l2_normalize_columns(const IN* y, const IN* dy, const COMPUTE* norms, IN* dx, double eps, i64 n, i64 inner,
                            int shift) {
    Columns c = columns_of(n, inner, shift);
    COMPUTE along = (COMPUTE)0;
    if (c.live) {
        #pragma unroll 4
        for (i64 i = c.start; i < n; i += c.step) {
            i64 at = c.offset + i * inner;
            along += to<COMPUTE>(y[at]) * to<COMPUTE>(dy[at]);
        }
    }
    along = merge_column(c, along, Add());
    if (!c.live) return;
    COMPUTE norm = norms[c.result];
    bool below = norm < (COMPUTE)eps;
    COMPUTE by = below ? (COMPUTE)eps : norm;
    if (below) along = (COMPUTE)0;
    for (i64 i = c.start; i < n; i += c.step) {
        i64 at = c.offset + i * inner;
        put<ADD>(dx + at, (to<COMPUTE>(dy[at]) - to<COMPUTE>(y[at]) * along) / by);
    }
}
#else
KERNEL l2_normalize_columns(const IN* x, IN* y, COMPUTE* norms, double eps, i64 n, i64 inner, int shift) {
    Columns c = columns_of(n, inner, shift);
    COMPUTE squares = (COMPUTE)0;
    if (c.live) {
        #pragma unroll 4
        for (i64 i = c.start; i < n; i += c.step) {
            COMPUTE v = to<COMPUTE>(x[c.offset + i * inner]);
            squares += v * v;
        }
    }
    COMPUTE norm = sqrt_(merge_column(c, squares, Add()));
    if (!c.live) return;
    if (c.start == 0) norms[c.result] = norm;
    COMPUTE by = norm < (COMPUTE)eps ? (COMPUTE)eps : norm;
    for (i64 i = c.start; i < n; i += c.step) {
        i64 at = c.offset + i * inner;
        y[at] = from<IN>(to<COMPUTE>(x[at]) / by);
    }
}
#endif
