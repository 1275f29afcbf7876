// The backward pass of layer and root-mean-square norm of rows that are too wide for registers: a block for each.
// Constants: COMPUTE (the arithmetic), IN (dtype of rows), PARAMETER (of the weight), CENTRED, ADD.

KERNEL(layer_norm_wide_backward, LayerNormBackwardArgs, p) {
    const IN *x = p.x, *dy = p.dy;
    const PARAMETER* weight = p.weight;
    const i64 width = p.width;
    const double share = p.share;
    const i64 row = blockIdx.x, base = row * width;
    const COMPUTE r = p.inv[row], m = CENTRED ? p.mean[row] : (COMPUTE)0;
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
        put<ADD>(p.dx + base + i, r * (g - level - n * along));
    }
}
