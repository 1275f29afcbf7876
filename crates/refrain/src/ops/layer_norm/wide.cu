// Layer and root-mean-square norm of rows that are too wide for registers: a block for each. Constants: COMPUTE (the
// arithmetic), IN (dtype of rows), PARAMETER (of weight and bias), CENTRED, BACKWARD, ADD.

#if BACKWARD
KERNEL layer_norm_wide(const IN* x, const PARAMETER* weight, const IN* dy, const COMPUTE* inv, const COMPUTE* mean, IN* dx,
                       double share, i64 width) {
    const i64 row = blockIdx.x, base = row * width;
    const COMPUTE r = inv[row], m = CENTRED ? mean[row] : (COMPUTE)0;
    COMPUTE along = (COMPUTE)0, level = (COMPUTE)0;
    #pragma unroll 4
    for (i64 i = threadIdx.x; i < width; i += 256) {
        COMPUTE g = to<COMPUTE>(dy[base + i]) * to<COMPUTE>(weight[i]);
        along += g * ((to<COMPUTE>(x[base + i]) - m) * r);
        if (CENTRED) level += g;
    }
    along = (COMPUTE)share * block_sum<256>(along);
    level = CENTRED ? (COMPUTE)share * block_sum<256>(level) : (COMPUTE)0;
    for (i64 i = threadIdx.x; i < width; i += 256) {
        COMPUTE g = to<COMPUTE>(dy[base + i]) * to<COMPUTE>(weight[i]);
        COMPUTE n = (to<COMPUTE>(x[base + i]) - m) * r;
        put<ADD>(dx + base + i, r * (g - level - n * along));
    }
}
#else
KERNEL layer_norm_wide(const IN* x, const PARAMETER* weight, const PARAMETER* bias, IN* y, COMPUTE* inv, COMPUTE* mean,
                       double share, double eps, i64 width) {
    const i64 row = blockIdx.x, base = row * width;
    COMPUTE m = (COMPUTE)0, squares = (COMPUTE)0;
    if (CENTRED) {
        #pragma unroll 4
        for (i64 i = threadIdx.x; i < width; i += 256) m += to<COMPUTE>(x[base + i]);
        m = (COMPUTE)share * block_sum<256>(m);
    }
    #pragma unroll 4
    for (i64 i = threadIdx.x; i < width; i += 256) {
        COMPUTE v = to<COMPUTE>(x[base + i]) - m;
        squares += v * v;
    }
    COMPUTE r = (COMPUTE)1 / sqrt_((COMPUTE)share * block_sum<256>(squares) + (COMPUTE)eps);
    if (threadIdx.x == 0) {
        inv[row] = r;
        if (CENTRED) mean[row] = m;
    }
    for (i64 i = threadIdx.x; i < width; i += 256) {
        COMPUTE v = (to<COMPUTE>(x[base + i]) - m) * r * to<COMPUTE>(weight[i]);
        y[base + i] = from<IN>(CENTRED ? v + to<COMPUTE>(bias[i]) : v);
    }
}
#endif
