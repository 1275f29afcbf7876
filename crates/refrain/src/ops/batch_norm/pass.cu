// A pass over all elements. Constants: those of elements.cu, ELEMENTS_AHEAD (vectors that a thread loads before it computes), RESIDENT
// (blocks on a multiprocessor that the registers must leave room for; 1: as the compiler likes), INNER (whether values of a channel are neighbours), FIXED
// (whether all vectors of a thread have the same channels).

// The channel of the first of the elements at `at`.
DEVICE INDEX channel_of(INDEX at, INDEX channels, INDEX inner) { return (INNER ? at / inner : at) % channels; }

// Those of the vectors at `at`, and at each `step` from there.
DEVICE void channels_of(INDEX* c, INDEX at, INDEX step, INDEX channels, INDEX inner) {
    #pragma unroll
    for (int k = 0; k < ELEMENTS_AHEAD; k++) c[k] = k > 0 && FIXED ? c[0] : channel_of(at + k * step, channels, inner);
}

typedef tail::Operands<VEC> Beside;
// What the tail reads besides the vector at `at`, whose first channel is `channel`.
DEVICE Beside beside(const Args& p, INDEX at, INDEX channel, INDEX inner) {
    return tail::fetch<VEC, ALIGNED>(p, (i64)at, (int)(INNER ? at % inner : channel), VEC);
}

// A vector of elements. Where sums are merged, what the tail reads is loaded behind them: it would take their registers and their turn.
struct Ahead { Loaded elements; Beside beside; };

// Loads the vectors at `at`, whose first channels are `channel`, and at each `step` from there, as far as they come before n.
DEVICE void load_ahead(Ahead* v, const Args& p, INDEX at, INDEX step, INDEX n, const INDEX* channel, INDEX inner) {
    #pragma unroll
    for (int k = 0; k < ELEMENTS_AHEAD; k++) {
        const INDEX place = at + k * step;
        if (place >= n) continue;
        load_all(v[k].elements, p, place);
        if (!MERGES) v[k].beside = beside(p, place, channel[k], inner);
    }
}

// Of one block, the compiler would make more of the registers than is good for those multiprocessors that have two.
#if RESIDENT > 1
#define PASS_BOUNDS __launch_bounds__(THREADS, RESIDENT)
#else
#define PASS_BOUNDS __launch_bounds__(THREADS)
#endif

KERNEL_THAT_WAITS(batch_norm_pass, Args, p, PASS_BOUNDS) {
    const INDEX n = (INDEX)p.n, channels = (INDEX)p.channels, inner = (INDEX)p.inner;
    const INDEX step = (INDEX)gridDim.x * THREADS * VEC;
    INDEX at = ((INDEX)blockIdx.x * THREADS + threadIdx.x) * VEC;
    INDEX channel[ELEMENTS_AHEAD];
    channels_of(channel, at, step, channels, inner);
    take_turn();
    Ahead v[ELEMENTS_AHEAD];
    // Loads that do not need the statistics are on their way while those are merged.
    load_ahead(v, p, at, step, n, channel, inner);
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
                    x[i] = apply(v[k].elements, i, FIXED ? kept[FIXED ? i : 0] : all.of(p, INNER ? channel[k] : channel[k] + i));
                }
                const vec<IN, VEC> result = stored(y + place, x);
                if (STORES) put_all(y + place, result);
                if (MERGES) v[k].beside = beside(p, place, channel[k], inner);
                tail::follow<VEC, ALIGNED>(p, begun, (i64)place, 0, VEC, v[k].beside, result, result);
            }
        }
        at += ELEMENTS_AHEAD * step;
        if (!FIXED) channels_of(channel, at, step, channels, inner);
        load_ahead(v, p, at, step, n, channel, inner);
    }
    if (blockIdx.x == 0) found.store(p);
}
