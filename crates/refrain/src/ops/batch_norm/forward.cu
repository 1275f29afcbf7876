// Elements of batch norm, by the statistics of their channels. Constants: those of elements.cu.

KERNEL_THAT_WAITS(batch_norm, BatchNormArgs, p, __launch_bounds__(THREADS)) {
    const IN* __restrict__ x = p.x;
    const PARAMETER *__restrict__ weight = p.weight, *__restrict__ bias = p.bias;
    IN* __restrict__ y = p.y;
    const INDEX n = (INDEX)p.n, channels = (INDEX)p.channels, inner = (INDEX)p.inner;
    const INDEX step = (INDEX)gridDim.x * THREADS * VEC;
    INDEX at = ((INDEX)blockIdx.x * THREADS + threadIdx.x) * VEC;
    INDEX channel[ELEMENTS_AHEAD];
    channels_of(channel, at, step, channels, inner);
    take_turn();
    COMPUTE v[ELEMENTS_AHEAD][VEC];
    // Loads that do not need the statistics are on their way while those are merged.
    fetch_ahead(v, x, at, step, n);
#if MERGES || RUNNING
    __shared__ COMPUTE mean_of[THREADS], scale_of[THREADS], shift_of[THREADS];
    const int own = threadIdx.x < channels ? threadIdx.x : 0;
    const COMPUTE own_weight = to<COMPUTE>(weight[own]);
    shift_of[threadIdx.x] = to<COMPUTE>(bias[own]);
#endif
#if MERGES
    const double pivot = pivot_of(p.sums, own), share = 1.0 / (double)p.sums.elements;
    Statistics batch;
    State sums;
    const bool has_channel = merge_partials(p.sums, 0, sums);
    if (has_channel) {
        batch = statistics(p.sums, pivot, share, sums);
        mean_of[threadIdx.x] = from<COMPUTE>(batch.mean);
        scale_of[threadIdx.x] = own_weight * from<COMPUTE>(batch.inv);
    }
    __syncthreads();
#elif RUNNING
    Running running(extra<PARAMETER>(p.sums, 0), extra<PARAMETER>(p.sums, 1), own, p.sums.s[1]);
    mean_of[threadIdx.x] = running.mean;
    scale_of[threadIdx.x] = own_weight * running.inv;
    if (blockIdx.x == 0 && threadIdx.x < channels) running.store(p.means, p.invs, own);
    __syncthreads();
#endif
    struct Affine { COMPUTE mean, scale, shift; };
    auto affine_of = [&](INDEX c) -> Affine {
#if MERGES || RUNNING
        return {mean_of[c], scale_of[c], shift_of[c]};
#else
        return {p.means[c], to<COMPUTE>(weight[c]) * p.invs[c], to<COMPUTE>(bias[c])};
#endif
    };
    Affine kept[FIXED ? VEC : 1];
    #pragma unroll
    for (int i = 0; i < VEC; i++) if (FIXED) kept[i] = affine_of(channel[0] + i);
    while (at < n) {
        #pragma unroll
        for (int k = 0; k < ELEMENTS_AHEAD; k++) {
            const INDEX place = at + k * step;
            if (place < n) {
                #pragma unroll
                for (int i = 0; i < VEC; i++) {
                    const Affine a = FIXED ? kept[FIXED ? i : 0] : affine_of(INNER ? channel[k] : channel[k] + i);
                    v[k][i] = (v[k][i] - a.mean) * a.scale + a.shift;
                }
                put_all(y + place, stored(y + place, v[k]));
            }
        }
        at += ELEMENTS_AHEAD * step;
        if (!FIXED) channels_of(channel, at, step, channels, inner);
        fetch_ahead(v, x, at, step, n);
    }
#if MERGES
    if (blockIdx.x == 0 && has_channel) store_statistics(p.sums, threadIdx.x, batch);
#endif
}
