// Cross entropy of logits with class ids. An id that is not one of the classes is reported, and makes the loss NaN and
// the gradient of its row. Constants: COMPUTE (the arithmetic), IN (dtype of the logits), ID (of the ids), and
// those of rows in registers, without which a block takes a row; GRADIENT: DY (dtype of the loss), ADD, INDEX (the type of offsets).

// The larger; a NaN is not.
struct Larger { DEVICE COMPUTE operator()(COMPUTE a, COMPUTE b) const { return b > a ? b : a; } };

// The loss of a row from its largest logit, the logarithm of its sum of exponentials and the sum of its distances
// from the largest logit.
DEVICE double loss_of(const IN* x, i64 id, i64 classes, COMPUTE shift, COMPUTE log, COMPUTE distances, double smoothing,
                      const Faults& faults) {
    if (id < 0 || id >= classes) {
        faults.report(id, classes);
        return (double)NAN_F;
    }
    COMPUTE loss = (COMPUTE)(1.0 - smoothing) * (log + (shift - to<COMPUTE>(x[id])));
    if (smoothing > 0.0) {
        loss += (COMPUTE)smoothing * (log + (COMPUTE)(1.0 / (double)classes) * distances);
    }
    return (double)loss;
}

#if GRADIENT
KERNEL cross_entropy_backward(const IN* x, const ID* ids, const COMPUTE* largest, const COMPUTE* inverse, const DY* dy,
                              IN* dx, double share, double smoothing, i64 n, i64 classes, Faults faults) {
    const INDEX step = (INDEX)gridDim.x * 256, width = (INDEX)classes;
    const COMPUTE scale = to<COMPUTE>(*dy) * (COMPUTE)share;
    const COMPUTE picked = scale * (COMPUTE)(1.0 - smoothing), level = scale * (COMPUTE)(smoothing / (double)classes);
    for (INDEX i = (INDEX)blockIdx.x * 256 + threadIdx.x; i < (INDEX)n; i += step) {
        INDEX row = i / width, column = i - row * width;
        i64 id = ids[row];
        COMPUTE d = exp_(to<COMPUTE>(x[i]) - largest[row]) * (scale * inverse[row]) - level;
        if (id == (i64)column) d -= picked;
        if (id < 0 || id >= classes) {
            if (column == 0) faults.report(id, classes);
            d = (COMPUTE)NAN_F;
        }
        put<ADD>(dx + i, d);
    }
}
#elif defined(LANES)
KERNEL cross_entropy(const IN* x, const ID* ids, COMPUTE* largest, COMPUTE* inverse, double* partial, double smoothing,
                     i64 rows, int classes, Faults faults) {
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
        largest[row] = shift;
        inverse[row] = (COMPUTE)1 / sum;
        loss = loss_of(x + row * classes, ids[row], classes, shift, log, distances, smoothing, faults);
    }
    loss = block_sum<256>(loss);
    if (threadIdx.x == 0) partial[blockIdx.x] = loss;
}
#else
KERNEL cross_entropy(const IN* x, const ID* ids, COMPUTE* largest, COMPUTE* inverse, double* partial, double smoothing,
                     i64, i64 classes, Faults faults) {
    const i64 row = blockIdx.x;
    x += row * classes;
    const COMPUTE lowest = limits<COMPUTE>::lowest();
    COMPUTE shift = lowest, sum = (COMPUTE)0, distances = (COMPUTE)0;
    #pragma unroll 4
    for (i64 i = threadIdx.x; i < classes; i += 256) shift = Larger()(shift, to<COMPUTE>(x[i]));
    shift = block_reduce<256>(shift, lowest, Larger());
    #pragma unroll 4
    for (i64 i = threadIdx.x; i < classes; i += 256) {
        COMPUTE v = to<COMPUTE>(x[i]);
        sum += exp_(v - shift);
        distances += shift - v;
    }
    sum = block_sum<256>(sum);
    COMPUTE log = log_(sum);
    distances = block_sum<256>(distances);
    if (threadIdx.x == 0) {
        largest[row] = shift;
        inverse[row] = (COMPUTE)1 / sum;
        partial[row] = loss_of(x, ids[row], classes, shift, log, distances, smoothing, faults);
    }
}
#endif
