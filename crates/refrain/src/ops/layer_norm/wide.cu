// Layer and root-mean-square norm of rows that are too wide for registers: a block for each. Constants: COMPUTE (the
// arithmetic), IN (dtype of rows), PARAMETER (of weight and bias), CENTRED.

KERNEL(layer_norm_wide, NormArgs, p) {
    const IN* x = reinterpret_cast<const IN*>(p.x);
    const PARAMETER *weight = reinterpret_cast<const PARAMETER*>(p.weight), *bias = reinterpret_cast<const PARAMETER*>(p.bias);
    IN* y = reinterpret_cast<IN*>(p.y);
    const i64 width = p.width;
    const double share = p.share;
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
    COMPUTE r = (COMPUTE)1 / sqrt_((COMPUTE)share * block_sum<256>(squares) + (COMPUTE)p.eps);
    if (threadIdx.x == 0) {
        reinterpret_cast<COMPUTE*>(p.inv)[row] = r;
        if (CENTRED) reinterpret_cast<COMPUTE*>(p.mean)[row] = m;
    }
    for (i64 i = threadIdx.x; i < width; i += 256) {
        COMPUTE v = (to<COMPUTE>(x[base + i]) - m) * r * to<COMPUTE>(weight[i]);
        y[base + i] = from<IN>(CENTRED ? v + to<COMPUTE>(bias[i]) : v);
    }
}
