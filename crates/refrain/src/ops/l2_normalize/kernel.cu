// Vectors of length 1 in registers. Constants: those of rows, IN (dtype), BACKWARD, ADD.

#if BACKWARD
KERNEL l2_normalize_rows(const IN* y, const IN* dy, const COMPUTE* norms, IN* dx, double eps, i64 rows, int width) {
    i64 row = row_number();
    bool live = row < rows;
    COMPUTE v[HELD], d[HELD], terms[HELD];
    fetch_row(v, y + row * width, width, live, (COMPUTE)0);
    fetch_row(d, dy + row * width, width, live, (COMPUTE)0);
    COMPUTE norm = live ? norms[row] : (COMPUTE)1;
    #pragma unroll
    for (int i = 0; i < HELD; i++) terms[i] = v[i] * d[i];
    COMPUTE along = row_sum(terms);
    // Below eps the length is not what a vector is divided by.
    bool below = norm < (COMPUTE)eps;
    COMPUTE by = below ? (COMPUTE)eps : norm;
    if (below) along = (COMPUTE)0;
    #pragma unroll
    for (int i = 0; i < HELD; i++) d[i] = (d[i] - v[i] * along) / by;
    put_row<ADD>(dx + row * width, d, width, live);
}
#else
KERNEL l2_normalize_rows(const IN* x, IN* y, COMPUTE* norms, double eps, i64 rows, int width) {
    i64 row = row_number();
    bool live = row < rows;
    COMPUTE v[HELD], terms[HELD];
    fetch_row(v, x + row * width, width, live, (COMPUTE)0);
    #pragma unroll
    for (int i = 0; i < HELD; i++) terms[i] = v[i] * v[i];
    COMPUTE norm = sqrt_(row_sum(terms));
    if (live && row_lane() == 0) norms[row] = norm;
    COMPUTE by = norm < (COMPUTE)eps ? (COMPUTE)eps : norm;
    #pragma unroll
    for (int i = 0; i < HELD; i++) v[i] = v[i] / by;
    put_row<false>(y + row * width, v, width, live);
}
#endif
