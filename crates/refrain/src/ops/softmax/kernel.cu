// Softmax of rows in registers. Constants: those of rows, IN (dtype), LOG.

// The larger number; NaN is ignored.
struct Larger { DEVICE COMPUTE operator()(COMPUTE a, COMPUTE b) const { return b > a ? b : a; } };

KERNEL(softmax_rows, SoftmaxRowsArgs, p) {
    const i64 rows = p.rows;
    const int width = (int)p.width;
    i64 row = row_number();
    bool live = row < rows;
    const COMPUTE lowest = limits<COMPUTE>::lowest();
    COMPUTE v[HELD], e[HELD];
    fetch_row(v, p.x + row * width, width, live, lowest);
    COMPUTE shift = lowest;
    #pragma unroll
    for (int i = 0; i < HELD; i++) shift = Larger()(shift, v[i]);
    shift = warp_reduce<LANES>(shift, Larger());
    #pragma unroll
    for (int i = 0; i < HELD; i++) e[i] = column_of(i) < width ? exp_(v[i] - shift) : (COMPUTE)0;
    COMPUTE sum = row_sum(e);
    // The logarithm is kept separate from the shift, because it is small beside it.
    COMPUTE by = LOG ? log_(sum) : (COMPUTE)1 / sum;
    #pragma unroll
    for (int i = 0; i < HELD; i++) e[i] = LOG ? v[i] - shift - by : e[i] * by;
    put_row<false>(p.y + row * width, e, width, live);
}
