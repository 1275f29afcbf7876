// The gradient of vectors of length 1 along columns. Constants: COMPUTE (the arithmetic), IN (dtype), ADD.

KERNEL(l2_normalize_columns_backward, L2ColumnsBackwardArgs, p) {
    const IN *y = p.y, *dy = p.dy;
    const i64 n = p.at.n, inner = p.at.inner;
    const double eps = p.eps;
    Columns c = columns_of(p.at);
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
    COMPUTE norm = p.norms[c.result];
    bool below = norm < (COMPUTE)eps;
    COMPUTE by = below ? (COMPUTE)eps : norm;
    if (below) along = (COMPUTE)0;
    for (i64 i = c.start; i < n; i += c.step) {
        i64 at = c.offset + i * inner;
        put<ADD>(p.dx + at, (to<COMPUTE>(dy[at]) - to<COMPUTE>(y[at]) * along) / by);
    }
}
