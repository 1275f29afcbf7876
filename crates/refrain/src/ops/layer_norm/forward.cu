// Layer norm and RMS norm of rows in registers. Constants: those of rows, IN (dtype of rows), PARAMETER (dtype of
// weight and bias), CENTRED.

// With registers for only one row, enough warps fit to keep memory busy. So weight and bias are loaded last, from the
// cache.
KERNEL(layer_norm, LayerNormArgs, p, __launch_bounds__(256, COMPUTE_SIZE > 4 || VEC == 1 ? 1 : 4)) {
    const IN* __restrict__ x = p.x;
    const PARAMETER *__restrict__ weight = p.weight, *__restrict__ bias = p.bias;
    IN* __restrict__ y = p.y;
    const i64 rows = p.rows;
    const int width = (int)p.width;
    const double share = p.share;
    i64 row = row_number();
    bool live = row < rows;
    COMPUTE v[HELD], squares[HELD];
    fetch_row(v, x + row * width, width, live, (COMPUTE)0);
    COMPUTE m = CENTRED ? (COMPUTE)share * row_sum(v) : (COMPUTE)0;
    #pragma unroll
    for (int e = 0; e < EACH; e++) {
        // Elements beyond the width stay 0.
        const COMPUTE centre = column_of(e * VEC) < width ? m : (COMPUTE)0;
        #pragma unroll
        for (int i = e * VEC; i < (e + 1) * VEC; i++) {
            v[i] -= centre;
            squares[i] = v[i] * v[i];
        }
    }
    COMPUTE r = (COMPUTE)1 / sqrt_((COMPUTE)share * row_sum(squares) + (COMPUTE)p.eps);
    // An empty row has no scale.
    if (width == 0) r = (COMPUTE)0;
    if (!live) return;
    if (row_lane() == 0) {
        p.inv[row] = r;
        if (CENTRED) p.mean[row] = m;
    }
    #pragma unroll
    for (int e = 0; e < EACH; e++) {
        const int at = column_of(e * VEC);
        if (at < width) {
            COMPUTE w[VEC], b[VEC];
            fetch_vec(w, weight + at);
            if (CENTRED) fetch_vec(b, bias + at);
            #pragma unroll
            for (int i = 0; i < VEC; i++) {
                const COMPUTE n = v[e * VEC + i] * r;
                w[i] = CENTRED ? n * w[i] + b[i] : n * w[i];
            }
            put_vec<false>(y + row * width + at, w);
        }
    }
}
