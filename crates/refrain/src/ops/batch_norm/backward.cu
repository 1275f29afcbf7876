// The gradient of x. In evaluation nothing of x or of sums goes into dx, of which a NaN would not vanish when it is
// multiplied by 0. Constants, beside those of elements.cu: TRAINING, TAIL (whether elementwise kernels follow, as tail.cu says),
// STORES (whether dx is stored, or read by the tail alone).

KERNEL_THAT_WAITS(batch_norm_backward, BatchNormBackwardArgs, p, __launch_bounds__(THREADS)) {
    const IN *__restrict__ x = p.x, *__restrict__ dy = p.dy;
    const PARAMETER* __restrict__ weight = p.weight;
    const COMPUTE *__restrict__ means = p.means, *__restrict__ invs = p.invs;
    IN* __restrict__ dx = p.dx;
    const INDEX n = (INDEX)p.n, channels = (INDEX)p.channels, inner = (INDEX)p.inner;
    const COMPUTE share = (COMPUTE)p.share;
    const INDEX step = (INDEX)gridDim.x * THREADS * VEC;
    INDEX at = ((INDEX)blockIdx.x * THREADS + threadIdx.x) * VEC;
    INDEX channel[ELEMENTS_AHEAD];
    channels_of(channel, at, step, channels, inner);
    take_turn();
    COMPUTE v[ELEMENTS_AHEAD][VEC], d[ELEMENTS_AHEAD][VEC];
    // Loads that do not need the sums are on their way while those are merged.
    if (TRAINING) fetch_ahead(v, x, at, step, n);
    fetch_ahead(d, dy, at, step, n);
#if TAIL
    const tail::Begun begun = tail::begin(p);
#endif
#if MERGES
    __shared__ COMPUTE mean_of[THREADS], scale_of[THREADS], level_of[THREADS], slope_of[THREADS];
    const int own = threadIdx.x < channels ? threadIdx.x : 0;
    const COMPUTE inv = invs[own];
    mean_of[threadIdx.x] = means[own];
    scale_of[threadIdx.x] = to<COMPUTE>(weight[own]) * inv;
    State sums;
    const bool has_channel = merge_partials(p.sums, 0, sums);
    if (has_channel) {
        level_of[threadIdx.x] = sums.level * share;
        slope_of[threadIdx.x] = sums.slope * inv * inv * share;
    }
    __syncthreads();
#endif
    // The gradient of an element is (d - level - (x - mean) slope) scale.
    struct Slope { COMPUTE mean, level, slope, scale; };
    auto slope_of_channel = [&](INDEX c) -> Slope {
#if MERGES
        return {mean_of[c], level_of[c], slope_of[c], scale_of[c]};
#else
        const COMPUTE inv = invs[c], scale = to<COMPUTE>(weight[c]) * inv;
        if (!TRAINING) return {(COMPUTE)0, (COMPUTE)0, (COMPUTE)0, scale};
        return {means[c], p.totals[2 * c] * share, p.totals[2 * c + 1] * inv * share, scale};
#endif
    };
    Slope kept[FIXED ? VEC : 1];
    #pragma unroll
    for (int i = 0; i < VEC; i++) if (FIXED) kept[i] = slope_of_channel(channel[0] + i);
    while (at < n) {
        #pragma unroll
        for (int k = 0; k < ELEMENTS_AHEAD; k++) {
            const INDEX place = at + k * step;
            if (place < n) {
                #pragma unroll
                for (int i = 0; i < VEC; i++) {
                    const Slope s = FIXED ? kept[FIXED ? i : 0] : slope_of_channel(INNER ? channel[k] : channel[k] + i);
                    if (TRAINING) d[k][i] = d[k][i] - s.level - (v[k][i] - s.mean) * s.slope;
                    d[k][i] *= s.scale;
                }
                const vec<IN, VEC> result = stored(dx + place, d[k]);
                if (STORES) put_all(dx + place, result);
#if TAIL
                const int col = (int)(INNER ? place % inner : channel[k]);
                const auto beside = tail::fetch<VEC, ALIGNED>(p, (i64)place, col, VEC);
                tail::follow<VEC, ALIGNED>(p, begun, (i64)place, 0, VEC, beside, result, result);
#endif
            }
        }
        at += ELEMENTS_AHEAD * step;
        if (!FIXED) channels_of(channel, at, step, channels, inner);
        if (TRAINING) fetch_ahead(v, x, at, step, n);
        fetch_ahead(d, dy, at, step, n);
    }
#if MERGES
    if (blockIdx.x == 0 && has_channel) finish(p.sums, threadIdx.x, sums);
#endif
}
