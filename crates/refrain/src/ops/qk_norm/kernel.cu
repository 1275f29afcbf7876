// Forward.

KERNEL(qk_norm, QkNormArgs, p) {
    const i64 rows = p.rows;
    const int width = (int)p.width;
    const double eps = p.eps;
    i64 row = row_number();
    bool live = row < rows;
    Vector at = vector_of(live ? row : 0);
    COMPUTE v[HELD];
    fetch_row(v, p.x + row * width, width, live, (COMPUTE)0);
    COMPUTE norm = length_of(v);
    COMPUTE inverse = (COMPUTE)1 / (norm < (COMPUTE)eps ? (COMPUTE)eps : norm);
    COMPUTE scale = (at.part == 0 ? p.temperature[at.head] : (COMPUTE)1) * inverse;
    if (at.part < 2) {
        #pragma unroll
        for (int i = 0; i < HELD; i++) v[i] *= scale;
    }
    put_row<false>(p.y + row * width, v, width, live);
}
