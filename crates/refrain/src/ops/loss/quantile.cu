// The gradient of the quantile loss. Constants: COMPUTE (the arithmetic), PREDICTION, TARGET, DY, DX (dtypes),
// LEVELS, BY (0: gradient of the prediction, 1: of the target), INDEX (the type of offsets), ADD.

// The slope of the loss is q above the prediction, q - 1 below it, the mean of both at it, and NaN for NaN.
DEVICE COMPUTE slope(COMPUTE x, COMPUTE t, COMPUTE q) {
    return t > x ? q : t < x ? q - (COMPUTE)1 : q - (COMPUTE)0.5 + (t - x);
}

KERNEL(quantile_backward, QuantileBackwardArgs, p) {
    const PREDICTION* x = p.x;
    const TARGET* t = p.t;
    const i64 n = p.n;
    const INDEX step = (INDEX)gridDim.x * 256;
    const COMPUTE scale = to<COMPUTE>(*p.dy) * (COMPUTE)p.share;
    for (INDEX i = (INDEX)blockIdx.x * 256 + threadIdx.x; i < (INDEX)n; i += step) {
        if (BY == 0) {
            COMPUTE q = (COMPUTE)p.levels[i % LEVELS];
            put<ADD>(p.dx + i, -scale * slope(to<COMPUTE>(x[i]), to<COMPUTE>(t[i / LEVELS]), q));
        } else {
            COMPUTE target = to<COMPUTE>(t[i]), sum = (COMPUTE)0;
            for (int l = 0; l < LEVELS; l++) {
                sum += slope(to<COMPUTE>(x[i * LEVELS + l]), target, (COMPUTE)p.levels[l]);
            }
            put<ADD>(p.dx + i, scale * sum);
        }
    }
}
