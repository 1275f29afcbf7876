// Queries and keys of length 1, in registers; queries times the temperature of their head, values as they are. Row
// `(token * 3 + part) * HEADS + head` is a query, key or value of `width` elements. Constants: those of rows, IN
// (dtype), HEADS, BACKWARD, ADD.

struct Vector {
    i64 token;
    int part, head;
};

DEVICE Vector vector_of(i64 row) {
    i64 group = row / HEADS;
    return {group / 3, (int)(group % 3), (int)(row % HEADS)};
}

// The length of a row.
DEVICE COMPUTE length_of(const COMPUTE* v) {
    COMPUTE terms[HELD];
    #pragma unroll
    for (int i = 0; i < HELD; i++) terms[i] = v[i] * v[i];
    return sqrt_(row_sum(terms));
}

#if BACKWARD
// `along` gets what each query adds to the gradient of its head's temperature.
KERNEL qk_norm(const IN* x, const COMPUTE* temperature, const IN* dy, IN* dx, COMPUTE* along, double eps, i64 rows,
               int width) {
    i64 row = row_number();
    bool live = row < rows;
    Vector at = vector_of(live ? row : 0);
    COMPUTE v[HELD], d[HELD], terms[HELD];
    fetch_row(v, x + row * width, width, live, (COMPUTE)0);
    fetch_row(d, dy + row * width, width, live, (COMPUTE)0);
    COMPUTE norm = length_of(v);
    // Below eps the length is not what a vector is divided by.
    bool below = norm < (COMPUTE)eps;
    COMPUTE inverse = (COMPUTE)1 / (below ? (COMPUTE)eps : norm);
    #pragma unroll
    for (int i = 0; i < HELD; i++) {
        v[i] *= inverse;
        terms[i] = v[i] * d[i];
    }
    COMPUTE projection = row_sum(terms);
    if (live && at.part == 0 && row_lane() == 0) along[at.token * HEADS + at.head] = projection;
    COMPUTE scale = (at.part == 0 ? temperature[at.head] : (COMPUTE)1) * inverse;
    if (below) projection = (COMPUTE)0;
    if (at.part < 2) {
        #pragma unroll
        for (int i = 0; i < HELD; i++) d[i] = (d[i] - v[i] * projection) * scale;
    }
    put_row<ADD>(dx + row * width, d, width, live);
}
#else
KERNEL qk_norm(const IN* x, const COMPUTE* temperature, IN* y, double eps, i64 rows, int width) {
    i64 row = row_number();
    bool live = row < rows;
    Vector at = vector_of(live ? row : 0);
    COMPUTE v[HELD];
    fetch_row(v, x + row * width, width, live, (COMPUTE)0);
    COMPUTE norm = length_of(v);
    COMPUTE inverse = (COMPUTE)1 / (norm < (COMPUTE)eps ? (COMPUTE)eps : norm);
    COMPUTE scale = (at.part == 0 ? temperature[at.head] : (COMPUTE)1) * inverse;
    if (at.part < 2) {
        #pragma unroll
        for (int i = 0; i < HELD; i++) v[i] *= scale;
    }
    put_row<false>(y + row * width, v, width, live);
}
#endif
