// The gradient of the quantile loss. Constants: COMPUTE (the arithmetic), PREDICTION,
// TARGET, DY, DX (dtypes), LEVELS, BY (0: of the
// prediction, 1: of the target), INDEX (the type of offsets), ADD.

struct Levels { double at[LEVELS]; };

// The loss has a slope of q above the prediction and of q - 1 below it, half of both at it, and none beside NaN.
DEVICE COMPUTE slope(COMPUTE x, COMPUTE t, COMPUTE q) {
    return t > x ? q : t < x ? q - (COMPUTE)1 : q - (COMPUTE)0.5 + (t - x);
}

KERNEL quantile_backward(const PREDICTION* x, const TARGET* t, const DY* dy, DX* dx, double share, i64 n,
                         const __grid_constant__ Levels levels) {
    const INDEX step = (INDEX)gridDim.x * 256;
    const COMPUTE scale = to<COMPUTE>(*dy) * (COMPUTE)share;
    for (INDEX i = (INDEX)blockIdx.x * 256 + threadIdx.x; i < (INDEX)n; i += step) {
        if (BY == 0) {
            COMPUTE q = (COMPUTE)levels.at[i % LEVELS];
            put<ADD>(dx + i, -scale * slope(to<COMPUTE>(x[i]), to<COMPUTE>(t[i / LEVELS]), q));
        } else {
            COMPUTE target = to<COMPUTE>(t[i]), sum = (COMPUTE)0;
            for (int l = 0; l < LEVELS; l++) {
                sum += slope(to<COMPUTE>(x[i * LEVELS + l]), target, (COMPUTE)levels.at[l]);
            }
            put<ADD>(dx + i, scale * sum);
        }
    }
}
