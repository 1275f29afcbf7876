// Batch norm element by element. Constants: COMPUTE (the arithmetic), IN (dtype of elements), PARAMETER (of parameters),
// INDEX (the type of offsets), VEC (elements that a thread takes at once, of one channel each or all of one), ELEMENTS_AHEAD
// (such vectors that a thread loads before it computes), ALIGNED (whether they can be loaded at once), INNER (whether values
// of a channel are neighbours), ADD, MERGES (whether each block merges the partial sums of all channels, of which there are at
// most THREADS; one block stores the results, when its elements are done), RUNNING (whether each block computes with the
// running statistics of all channels, of which there are at most THREADS).

#define THREADS MERGE_THREADS

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

// Those at `at`, and at each `step` from there, as far as they come before n.
DEVICE void fetch_ahead(COMPUTE (*x)[VEC], const IN* p, INDEX at, INDEX step, INDEX n) {
    #pragma unroll
    for (int k = 0; k < ELEMENTS_AHEAD; k++) if (at + k * step < n) fetch(x[k], p + at + k * step);
}

// What is stored at `p` of the values y, or of their sums with what lies there, if ADD.
DEVICE vec<IN, VEC> stored(const IN* p, const COMPUTE* y) {
    vec<IN, VEC> v;
    if (ADD && ALIGNED) v = load<VEC>(p);
    #pragma unroll
    for (int i = 0; i < VEC; i++) {
        if (ADD && !ALIGNED) v.at[i] = p[i];
        put<ADD>(&v.at[i], y[i]);
    }
    return v;
}

DEVICE void put_all(IN* p, const vec<IN, VEC>& v) {
    if (ALIGNED) {
        store<VEC>(p, v);
    } else {
        #pragma unroll
        for (int i = 0; i < VEC; i++) p[i] = v.at[i];
    }
}

// The channel of the first of the elements at `at`.
DEVICE INDEX channel_of(INDEX at, INDEX channels, INDEX inner) { return (INNER ? at / inner : at) % channels; }

// Those of the vectors at `at`, and at each `step` from there.
DEVICE void channels_of(INDEX* c, INDEX at, INDEX step, INDEX channels, INDEX inner) {
    #pragma unroll
    for (int k = 0; k < ELEMENTS_AHEAD; k++) c[k] = k > 0 && FIXED ? c[0] : channel_of(at + k * step, channels, inner);
}
