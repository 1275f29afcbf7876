// Vectors of length 1 along columns. Constants: COMPUTE (the arithmetic), IN (dtype).

KERNEL(l2_normalize_columns, L2ColumnsArgs, p) {
    const IN* x = p.x;
    const i64 n = p.at.n, inner = p.at.inner;
    const double eps = p.eps;
    Columns c = columns_of(p.at);
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
    if (c.start == 0) p.norms[c.result] = norm;
    COMPUTE by = norm < (COMPUTE)eps ? (COMPUTE)eps : norm;
    for (i64 i = c.start; i < n; i += c.step) {
        i64 at = c.offset + i * inner;
        p.y[at] = from<IN>(to<COMPUTE>(x[at]) / by);
    }
}
