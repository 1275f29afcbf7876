// Vectors of length 1 in registers. Constants: those of rows, IN (dtype).

KERNEL(l2_normalize_rows, L2RowsArgs, p) {
    const i64 rows = p.rows;
    const int width = (int)p.width;
    const double eps = p.eps;
    i64 row = row_number();
    bool live = row < rows;
    COMPUTE v[HELD], terms[HELD];
    fetch_row(v, p.x + row * width, width, live, (COMPUTE)0);
    #pragma unroll
    for (int i = 0; i < HELD; i++) terms[i] = v[i] * v[i];
    COMPUTE norm = sqrt_(row_sum(terms));
    if (live && row_lane() == 0) p.norms[row] = norm;
    COMPUTE by = norm < (COMPUTE)eps ? (COMPUTE)eps : norm;
    #pragma unroll
    for (int i = 0; i < HELD; i++) v[i] = v[i] / by;
    put_row<false>(p.y + row * width, v, width, live);
}
