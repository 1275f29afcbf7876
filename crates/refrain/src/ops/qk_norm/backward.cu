// Backward. Constant: ADD.

KERNEL(qk_norm_backward, QkNormBackwardArgs, p) {
    const i64 rows = p.rows;
    const int width = (int)p.width;
    const double eps = p.eps;
    i64 row = row_number();
    bool live = row < rows;
    Vector at = vector_of(live ? row : 0);
    COMPUTE v[HELD], d[HELD], terms[HELD];
    fetch_row(v, p.x + row * width, width, live, (COMPUTE)0);
    fetch_row(d, p.dy + row * width, width, live, (COMPUTE)0);
    COMPUTE norm = length_of(v);
    // Below eps, the vector is divided by eps instead of its length.
    bool below = norm < (COMPUTE)eps;
    COMPUTE inverse = (COMPUTE)1 / (below ? (COMPUTE)eps : norm);
    #pragma unroll
    for (int i = 0; i < HELD; i++) {
        v[i] *= inverse;
        terms[i] = v[i] * d[i];
    }
    COMPUTE projection = row_sum(terms);
    if (live && at.part == 0 && row_lane() == 0) p.along[at.token * HEADS + at.head] = projection;
    COMPUTE scale = (at.part == 0 ? p.temperature[at.head] : (COMPUTE)1) * inverse;
    if (below) projection = (COMPUTE)0;
    if (at.part < 2) {
        #pragma unroll
        for (int i = 0; i < HELD; i++) d[i] = (d[i] - v[i] * projection) * scale;
    }
    put_row<ADD>(p.dx + row * width, d, width, live);
}
