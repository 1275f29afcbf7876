// The gradient of x. In evaluation nothing of x or of sums goes into dx, of which a NaN would not vanish when it is
// multiplied by 0. Constants, beside those of elements.cu: TRAINING.

KERNEL(batch_norm_backward, BatchNormBackwardArgs, p, __launch_bounds__(THREADS)) {
    const IN *__restrict__ x = p.x, *__restrict__ dy = p.dy;
    const PARAMETER* __restrict__ weight = p.weight;
    const COMPUTE *__restrict__ means = p.means, *__restrict__ invs = p.invs;
    IN* __restrict__ dx = p.dx;
    const i64 n = p.n, channels = p.channels, inner = p.inner;
    const COMPUTE share = (COMPUTE)p.share;
    const INDEX step = (INDEX)gridDim.x * THREADS * VEC;
    INDEX at = ((INDEX)blockIdx.x * THREADS + threadIdx.x) * VEC;
    COMPUTE v[VEC], d[VEC];
    // Loads that do not need the sums are on their way while those are merged.
    if (at < (INDEX)n) {
        if (TRAINING) fetch(v, x + at);
        fetch(d, dy + at);
    }
#if MERGES
    __shared__ COMPUTE mean_of[THREADS], scale_of[THREADS], level_of[THREADS], slope_of[THREADS];
    const int own = threadIdx.x < channels ? threadIdx.x : 0;
    const COMPUTE inv = invs[own];
    mean_of[threadIdx.x] = means[own];
    scale_of[threadIdx.x] = to<COMPUTE>(weight[own]) * inv;
    State sums;
    if (merge_partials(p.sums, 0, sums)) {
        level_of[threadIdx.x] = sums.level * share;
        slope_of[threadIdx.x] = sums.slope * inv * inv * share;
        if (blockIdx.x == 0) finish(p.sums, threadIdx.x, sums);
    }
    __syncthreads();
#else
    const COMPUTE* __restrict__ totals = p.totals;
#endif
    while (at < (INDEX)n) {
        INDEX channel = channel_of(at, (INDEX)channels, (INDEX)inner);
        #pragma unroll
        for (int i = 0; i < VEC; i++) {
            INDEX c = INNER ? channel : channel + i;
#if MERGES
            if (TRAINING) d[i] = d[i] - level_of[c] - (v[i] - mean_of[c]) * slope_of[c];
            d[i] *= scale_of[c];
#else
            COMPUTE inv = invs[c];
            if (TRAINING) {
                COMPUTE level = totals[2 * c] * share, slope = totals[2 * c + 1] * inv * share;
                d[i] = d[i] - level - (v[i] - means[c]) * slope;
            }
            d[i] *= to<COMPUTE>(weight[c]) * inv;
#endif
        }
        put_all(dx + at, d);
        at += step;
        if (at < (INDEX)n) {
            if (TRAINING) fetch(v, x + at);
            fetch(d, dy + at);
        }
    }
}
