// The gradient of vectors of length 1 in registers. Constants: those of rows, IN (dtype), ADD.

KERNEL(l2_normalize_rows_backward, L2RowsBackwardArgs, p) {
    const i64 rows = p.rows;
    const int width = (int)p.width;
    const double eps = p.eps;
    i64 row = row_number();
    bool live = row < rows;
    COMPUTE v[HELD], d[HELD], terms[HELD];
    fetch_row(v, p.y + row * width, width, live, (COMPUTE)0);
    fetch_row(d, p.dy + row * width, width, live, (COMPUTE)0);
    COMPUTE norm = live ? p.norms[row] : (COMPUTE)1;
    #pragma unroll
    for (int i = 0; i < HELD; i++) terms[i] = v[i] * d[i];
    COMPUTE along = row_sum(terms);
    // Below eps, the vector is divided by eps instead of its length.
    bool below = norm < (COMPUTE)eps;
    COMPUTE by = below ? (COMPUTE)eps : norm;
    if (below) along = (COMPUTE)0;
    #pragma unroll
    for (int i = 0; i < HELD; i++) d[i] = (d[i] - v[i] * along) / by;
    put_row<ADD>(p.dx + row * width, d, width, live);
}
