// Elements of batch norm, by the statistics of their channels. Constants: those of elements.cu.

KERNEL(batch_norm, BatchNormArgs, p, __launch_bounds__(THREADS)) {
    const IN* __restrict__ x = p.x;
    const PARAMETER *__restrict__ weight = p.weight, *__restrict__ bias = p.bias;
    const COMPUTE *__restrict__ means = p.means, *__restrict__ invs = p.invs;
    IN* __restrict__ y = p.y;
    const i64 n = p.n, channels = p.channels, inner = p.inner;
    const INDEX step = (INDEX)gridDim.x * THREADS * VEC;
    INDEX at = ((INDEX)blockIdx.x * THREADS + threadIdx.x) * VEC;
    COMPUTE v[VEC];
    // Loads that do not need the statistics are on their way while those are merged.
    if (at < (INDEX)n) fetch(v, x + at);
#if MERGES
    __shared__ COMPUTE mean_of[THREADS], scale_of[THREADS], shift_of[THREADS];
    const int own = threadIdx.x < channels ? threadIdx.x : 0;
    const double pivot = pivot_of(p.sums, own);
    const COMPUTE own_weight = to<COMPUTE>(weight[own]);
    shift_of[threadIdx.x] = to<COMPUTE>(bias[own]);
    State sums;
    if (merge_partials(p.sums, 0, sums)) {
        Moments s(p.sums, pivot, sums);
        double inv = inverse_std(p.sums, s);
        mean_of[threadIdx.x] = from<COMPUTE>(s.mean);
        scale_of[threadIdx.x] = own_weight * from<COMPUTE>(inv);
        if (blockIdx.x == 0) store_statistics(p.sums, threadIdx.x, s, inv);
    }
    __syncthreads();
#endif
    while (at < (INDEX)n) {
        INDEX channel = channel_of(at, (INDEX)channels, (INDEX)inner);
        #pragma unroll
        for (int i = 0; i < VEC; i++) {
            INDEX c = INNER ? channel : channel + i;
#if MERGES
            v[i] = (v[i] - mean_of[c]) * scale_of[c] + shift_of[c];
#else
            v[i] = (v[i] - means[c]) * (to<COMPUTE>(weight[c]) * invs[c]) + to<COMPUTE>(bias[c]);
#endif
        }
        put_all(y + at, v);
        at += step;
        if (at < (INDEX)n) fetch(v, x + at);
    }
}
