// A pass over all elements. Constants: those of elements.cu, ELEMENTS_AHEAD (vectors that a thread loads before it computes), INNER
// (whether values of a channel are neighbours), FIXED (whether all vectors of a thread have the same channels).

// The channel of the first of the elements at `at`.
DEVICE INDEX channel_of(INDEX at, INDEX channels, INDEX inner) { return (INNER ? at / inner : at) % channels; }

// Those of the vectors at `at`, and at each `step` from there.
DEVICE void channels_of(INDEX* c, INDEX at, INDEX step, INDEX channels, INDEX inner) {
    #pragma unroll
    for (int k = 0; k < ELEMENTS_AHEAD; k++) c[k] = k > 0 && FIXED ? c[0] : channel_of(at + k * step, channels, inner);
}

// Loads the vectors at `at`, and at each `step` from there, as far as they come before n.
DEVICE void load_ahead(Loaded* v, const Args& p, INDEX at, INDEX step, INDEX n) {
    #pragma unroll
    for (int k = 0; k < ELEMENTS_AHEAD; k++) if (at + k * step < n) load_all(v[k], p, at + k * step);
}

KERNEL_THAT_WAITS(batch_norm_pass, Args, p, __launch_bounds__(THREADS)) {
    const INDEX n = (INDEX)p.n, channels = (INDEX)p.channels, inner = (INDEX)p.inner;
    const INDEX step = (INDEX)gridDim.x * THREADS * VEC;
    INDEX at = ((INDEX)blockIdx.x * THREADS + threadIdx.x) * VEC;
    INDEX channel[ELEMENTS_AHEAD];
    channels_of(channel, at, step, channels, inner);
    take_turn();
    Loaded v[ELEMENTS_AHEAD];
    // Loads that do not need the statistics are on their way while those are merged.
    load_ahead(v, p, at, step, n);
    const tail::Begun begun = tail::begin(p);
    __shared__ Channels all;
    const Found found = find(p, all);
    IN* const y = result_of(p);
    Channel kept[FIXED ? VEC : 1];
    #pragma unroll
    for (int i = 0; i < VEC; i++) if (FIXED) kept[i] = all.of(p, channel[0] + i);
    while (at < n) {
        #pragma unroll
        for (int k = 0; k < ELEMENTS_AHEAD; k++) {
            const INDEX place = at + k * step;
            if (place < n) {
                COMPUTE x[VEC];
                #pragma unroll
                for (int i = 0; i < VEC; i++) {
                    x[i] = apply(v[k], i, FIXED ? kept[FIXED ? i : 0] : all.of(p, INNER ? channel[k] : channel[k] + i));
                }
                const vec<IN, VEC> result = stored(y + place, x);
                if (STORES) put_all(y + place, result);
                const int col = (int)(INNER ? place % inner : channel[k]);
                const auto beside = tail::fetch<VEC, ALIGNED>(p, (i64)place, col, VEC);
                tail::follow<VEC, ALIGNED>(p, begun, (i64)place, 0, VEC, beside, result, result);
            }
        }
        at += ELEMENTS_AHEAD * step;
        if (!FIXED) channels_of(channel, at, step, channels, inner);
        load_ahead(v, p, at, step, n);
    }
    if (blockIdx.x == 0) found.store(p);
}
