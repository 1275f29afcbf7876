// Queries and keys of length 1, in registers; queries times the temperature of their head, values as they are. Row
// `(token * 3 + part) * HEADS + head` is a query, key or value of `width` elements. Constants: those of rows, IN
// (dtype), HEADS.

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
