// The gradient of x. In evaluation nothing of x or of sums goes into dx, of which a NaN would not vanish when it is
// multiplied by 0. Constants, beside those of elements.cu: TRAINING.

KERNEL(batch_norm_backward, BatchNormBackwardArgs, p) {
    const IN *__restrict__ x = p.x, *__restrict__ dy = p.dy;
    const PARAMETER* __restrict__ weight = p.weight;
    const COMPUTE *__restrict__ means = p.means, *__restrict__ invs = p.invs, *__restrict__ sums = p.sums;
    IN* __restrict__ dx = p.dx;
    const i64 n = p.n, channels = p.channels, inner = p.inner;
    const double share = p.share;
    const INDEX step = (INDEX)gridDim.x * 256 * VEC;
    for (INDEX at = ((INDEX)blockIdx.x * 256 + threadIdx.x) * VEC; at < (INDEX)n; at += step) {
        INDEX channel = channel_of(at, (INDEX)channels, (INDEX)inner);
        COMPUTE v[VEC], d[VEC];
        if (TRAINING) fetch(v, x + at);
        fetch(d, dy + at);
        #pragma unroll
        for (int i = 0; i < VEC; i++) {
            INDEX c = INNER ? channel : channel + i;
            COMPUTE inv = invs[c], scale = to<COMPUTE>(weight[c]) * inv;
            if (TRAINING) {
                COMPUTE level = sums[2 * c] * (COMPUTE)share, slope = sums[2 * c + 1] * inv * (COMPUTE)share;
                d[i] = d[i] - level - (v[i] - means[c]) * slope;
            }
            d[i] *= scale;
        }
        put_all(dx + at, d);
    }
}
