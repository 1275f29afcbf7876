// Softmax of rows in registers. Constants: those of rows, IN (dtype), LOG, BACKWARD, ADD.

// The larger; a NaN is not.
struct Larger { DEVICE COMPUTE operator()(COMPUTE a, COMPUTE b) const { return b > a ? b : a; } };

#if BACKWARD
KERNEL softmax_rows(const IN* y, const IN* dy, IN* dx, i64 rows, int width) {
    i64 row = row_number();
    bool live = row < rows;
    COMPUTE v[HELD], d[HELD], terms[HELD];
    fetch_row(v, y + row * width, width, live, (COMPUTE)0);
    fetch_row(d, dy + row * width, width, live, (COMPUTE)0);
    #pragma unroll
    for (int i = 0; i < HELD; i++) terms[i] = LOG ? d[i] : v[i] * d[i];
    COMPUTE total = row_sum(terms);
    #pragma unroll
    for (int i = 0; i < HELD; i++) d[i] = LOG ? d[i] - exp_(v[i]) * total : v[i] * (d[i] - total);
    put_row<ADD>(dx + row * width, d, width, live);
}
#else
KERNEL softmax_rows(const IN* x, IN* y, i64 rows, int width) {
    i64 row = row_number();
    bool live = row < rows;
    const COMPUTE lowest = limits<COMPUTE>::lowest();
    COMPUTE v[HELD], p[HELD];
    fetch_row(v, x + row * width, width, live, lowest);
    COMPUTE shift = lowest;
    #pragma unroll
    for (int i = 0; i < HELD; i++) shift = Larger()(shift, v[i]);
    shift = warp_reduce<LANES>(shift, Larger());
    #pragma unroll
    for (int i = 0; i < HELD; i++) p[i] = column_of(i) < width ? exp_(v[i] - shift) : (COMPUTE)0;
    COMPUTE sum = row_sum(p);
    // The logarithm apart from the shift, beside which it is small.
    COMPUTE by = LOG ? log_(sum) : (COMPUTE)1 / sum;
    #pragma unroll
    for (int i = 0; i < HELD; i++) p[i] = LOG ? v[i] - shift - by : p[i] * by;
    put_row<false>(y + row * width, p, width, live);
}
#endif
