// The gradient of softmax of columns, and of rows that are too wide for registers. Constants: COMPUTE (the arithmetic), IN
// (dtype), LOG, ADD.

KERNEL(softmax_columns_backward, SoftmaxColumnsBackwardArgs, p) {
    const IN *y = p.y, *dy = p.dy;
    const i64 n = p.at.n, inner = p.at.inner;
    Columns c = columns_of(p.at);
    COMPUTE total = (COMPUTE)0;
    if (c.live) {
        #pragma unroll 4
        for (i64 i = c.start; i < n; i += c.step) {
            COMPUTE d = to<COMPUTE>(dy[c.offset + i * inner]);
            total += LOG ? d : to<COMPUTE>(y[c.offset + i * inner]) * d;
        }
    }
    total = merge_column(c, total, Add());
    if (!c.live) return;
    for (i64 i = c.start; i < n; i += c.step) {
        i64 at = c.offset + i * inner;
        COMPUTE v = to<COMPUTE>(y[at]), d = to<COMPUTE>(dy[at]);
        put<ADD>(p.dx + at, LOG ? d - exp_(v) * total : v * (d - total));
    }
}
