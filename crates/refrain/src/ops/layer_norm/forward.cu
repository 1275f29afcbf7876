// Layer and root-mean-square norm of rows in registers. Constants: those of rows, IN (dtype), CENTRED.

KERNEL layer_norm(const IN* __restrict__ x, const IN* __restrict__ weight, const IN* __restrict__ bias,
                  IN* __restrict__ y, COMPUTE* inv, COMPUTE* mean, double share, double eps, i64 rows, int width) {
    i64 row = row_number();
    bool live = row < rows;
    COMPUTE v[HELD], w[HELD], b[HELD], squares[HELD];
    fetch_row(v, x + row * width, width, live, (COMPUTE)0);
    fetch_row(w, weight, width, true, (COMPUTE)0);
    if (CENTRED) fetch_row(b, bias, width, true, (COMPUTE)0);
    COMPUTE m = CENTRED ? (COMPUTE)share * row_sum(v) : (COMPUTE)0;
    #pragma unroll
    for (int i = 0; i < HELD; i++) squares[i] = column_of(i) < width ? (v[i] - m) * (v[i] - m) : (COMPUTE)0;
    COMPUTE r = (COMPUTE)1 / sqrt_((COMPUTE)share * row_sum(squares) + (COMPUTE)eps);
    // A row of nothing has no scale.
    if (width == 0) r = (COMPUTE)0;
    if (live && row_lane() == 0) {
        inv[row] = r;
        if (CENTRED) mean[row] = m;
    }
    #pragma unroll
    for (int i = 0; i < HELD; i++) v[i] = CENTRED ? (v[i] - m) * r * w[i] + b[i] : v[i] * r * w[i];
    put_row<false>(y + row * width, v, width, live);
}
