// Rows in registers. Constants, beside those of cross_entropy.cu: those of rows.

KERNEL(cross_entropy, CrossEntropyArgs, p) {
    const IN* x = p.x;
    const i64 rows = p.rows;
    const int classes = (int)p.classes;
    const double smoothing = p.smoothing;
    i64 row = row_number();
    bool live = row < rows;
    const COMPUTE lowest = limits<COMPUTE>::lowest();
    COMPUTE v[HELD], terms[HELD];
    fetch_row(v, x + row * classes, classes, live, lowest);
    COMPUTE shift = lowest;
    #pragma unroll
    for (int i = 0; i < HELD; i++) shift = Larger()(shift, v[i]);
    shift = warp_reduce<LANES>(shift, Larger());
    #pragma unroll
    for (int i = 0; i < HELD; i++) terms[i] = column_of(i) < classes ? exp_(v[i] - shift) : (COMPUTE)0;
    COMPUTE sum = row_sum(terms), log = log_(sum);
    #pragma unroll
    for (int i = 0; i < HELD; i++) terms[i] = column_of(i) < classes ? shift - v[i] : (COMPUTE)0;
    COMPUTE distances = smoothing > 0.0 ? row_sum(terms) : (COMPUTE)0;
    double loss = 0.0;
    if (live && row_lane() == 0) {
        p.largest[row] = shift;
        p.inverse[row] = (COMPUTE)1 / sum;
        loss = loss_of(x + row * classes, p.ids[row], classes, shift, log, distances, smoothing, p.faults);
    }
    loss = block_sum<256>(loss);
    if (threadIdx.x == 0) p.partial[blockIdx.x] = loss;
}
