// Queries and keys of length 1, in registers; queries times the temperature of their head, values as they are. Row
// `(token * 3 + part) * heads + head` is a query, key or value of `width` elements. Constants: those of rows, IN
// (dtype), BACKWARD, ADD.

struct Vector {
    i64 token;
    int part, head;
};

DEVICE Vector vector_of(i64 row, int heads) {
    i64 group = row / heads;
    return {group / 3, (int)(group % 3), (int)(row - group * heads)};
}

// What a row is divided by.
DEVICE COMPUTE length_of(const COMPUTE* v) {
    COMPUTE terms[HELD];
    #pragma unroll
    for (int i = 0; i < HELD; i++) terms[i] = v[i] * v[i];
    return sqrt_(row_sum(terms));
}

#if BACKWARD
// `along` gets the gradient of the temperature that comes from each query.
KERNEL qk_norm(const IN* x, const COMPUTE* temperature, const IN* dy, IN* dx, COMPUTE* along, double eps, i64 rows,
               int heads, int width) {
    i64 row = row_number();
    bool live = row < rows;
    Vector at = vector_of(live ? row : 0, heads);
    COMPUTE v[HELD], d[HELD], terms[HELD];
    fetch_row(v, x + row * width, width, live, (COMPUTE)0);
    fetch_row(d, dy + row * width, width, live, (COMPUTE)0);
    COMPUTE norm = length_of(v);
    // Below eps the length is not what a vector is divided by.
    bool below = norm < (COMPUTE)eps;
    COMPUTE by = below ? (COMPUTE)eps : norm;
    #pragma unroll
    for (int i = 0; i < HELD; i++) {
        v[i] = v[i] / by;
        terms[i] = v[i] * d[i];
    }
    COMPUTE projection = row_sum(terms);
    if (live && at.part == 0 && row_lane() == 0) along[at.token * heads + at.head] = projection;
    COMPUTE scale = at.part == 0 ? temperature[at.head] : (COMPUTE)1;
    if (below) projection = (COMPUTE)0;
    if (at.part < 2) {
        #pragma unroll
        for (int i = 0; i < HELD; i++) d[i] = (d[i] - v[i] * projection) / by * scale;
    }
    put_row<ADD>(dx + row * width, d, width, live);
}
#else
KERNEL qk_norm(const IN* x, const COMPUTE* temperature, IN* y, double eps, i64 rows, int heads, int width) {
    i64 row = row_number();
    bool live = row < rows;
    Vector at = vector_of(live ? row : 0, heads);
    COMPUTE v[HELD];
    fetch_row(v, x + row * width, width, live, (COMPUTE)0);
    COMPUTE norm = length_of(v);
    COMPUTE by = norm < (COMPUTE)eps ? (COMPUTE)eps : norm;
    COMPUTE scale = at.part == 0 ? temperature[at.head] : (COMPUTE)1;
    if (at.part < 2) {
        #pragma unroll
        for (int i = 0; i < HELD; i++) v[i] = v[i] / by * scale;
    }
    put_row<false>(y + row * width, v, width, live);
}
#endif
