// Batch norm element by element, and its statistics in evaluation. Constants: COMPUTE (the arithmetic), IN (dtype of
// elements), PARAMETER (of parameters and running statistics), INDEX (the type of offsets), VEC (elements that a thread
// takes at once, of one channel each or all of one), ALIGNED (whether they can be loaded at once), INNER (whether values
// of a channel are neighbours), BACKWARD, TRAINING (of the backward pass), ADD.

// Mean and 1/std of running statistics.
KERNEL batch_norm_running(const PARAMETER* mean, const PARAMETER* var, COMPUTE* means, COMPUTE* invs, double eps, i64 channels) {
    i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= channels) return;
    means[i] = to<COMPUTE>(mean[i]);
    invs[i] = (COMPUTE)1 / sqrt_(to<COMPUTE>(var[i]) + (COMPUTE)eps);
}

DEVICE void fetch(COMPUTE* x, const IN* p) {
    if (ALIGNED) {
        vec<IN, VEC> v = load<VEC>(p);
        #pragma unroll
        for (int i = 0; i < VEC; i++) x[i] = to<COMPUTE>(v.at[i]);
    } else {
        #pragma unroll
        for (int i = 0; i < VEC; i++) x[i] = to<COMPUTE>(p[i]);
    }
}

DEVICE void put_all(IN* p, const COMPUTE* y) {
    if (ALIGNED) {
        vec<IN, VEC> v;
        if (ADD) v = load<VEC>(p);
        #pragma unroll
        for (int i = 0; i < VEC; i++) put<ADD>(&v.at[i], y[i]);
        store<VEC>(p, v);
    } else {
        #pragma unroll
        for (int i = 0; i < VEC; i++) put<ADD>(p + i, y[i]);
    }
}

// The channel of the first of the elements at `at`.
DEVICE INDEX channel_of(INDEX at, INDEX channels, INDEX inner) { return (INNER ? at / inner : at) % channels; }

#if BACKWARD
// `sums` are those of dy and of dy (x - mean) / std; `share` is 1 by the values of a channel. In evaluation nothing of x
// or of sums goes into dx, of which a NaN would not vanish when it is multiplied by 0.
KERNEL batch_norm(const IN* __restrict__ x, const PARAMETER* __restrict__ weight, const IN* __restrict__ dy,
                  const COMPUTE* __restrict__ means, const COMPUTE* __restrict__ invs,
                  const COMPUTE* __restrict__ sums, IN* __restrict__ dx, double share, i64 n, i64 channels, i64 inner) {
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
#else
KERNEL batch_norm(const IN* __restrict__ x, const PARAMETER* __restrict__ weight, const PARAMETER* __restrict__ bias,
                  const COMPUTE* __restrict__ means, const COMPUTE* __restrict__ invs, IN* __restrict__ y, i64 n,
                  i64 channels, i64 inner) {
    const INDEX step = (INDEX)gridDim.x * 256 * VEC;
    for (INDEX at = ((INDEX)blockIdx.x * 256 + threadIdx.x) * VEC; at < (INDEX)n; at += step) {
        INDEX channel = channel_of(at, (INDEX)channels, (INDEX)inner);
        COMPUTE v[VEC];
        fetch(v, x + at);
        #pragma unroll
        for (int i = 0; i < VEC; i++) {
            INDEX c = INNER ? channel : channel + i;
            v[i] = (v[i] - means[c]) * (to<COMPUTE>(weight[c]) * invs[c]) + to<COMPUTE>(bias[c]);
        }
        put_all(y + at, v);
    }
}
#endif
