// The gradient of softmax of rows in registers. Constants: those of rows, IN (dtype), LOG, ADD.

KERNEL(softmax_rows_backward, SoftmaxRowsBackwardArgs, p) {
    const i64 rows = p.rows;
    const int width = (int)p.width;
    i64 row = row_number();
    bool live = row < rows;
    COMPUTE v[HELD], d[HELD], terms[HELD];
    fetch_row(v, p.y + row * width, width, live, (COMPUTE)0);
    fetch_row(d, p.dy + row * width, width, live, (COMPUTE)0);
    #pragma unroll
    for (int i = 0; i < HELD; i++) terms[i] = LOG ? d[i] : v[i] * d[i];
    COMPUTE total = row_sum(terms);
    #pragma unroll
    for (int i = 0; i < HELD; i++) d[i] = LOG ? d[i] - exp_(v[i]) * total : v[i] * (d[i] - total);
    put_row<ADD>(p.dx + row * width, d, width, live);
}
