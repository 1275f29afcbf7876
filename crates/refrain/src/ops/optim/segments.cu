// Segments of flat buffers: how each range of elements is updated. Constants: COMPUTE (the arithmetic), IN (dtype),
// VEC (elements per thread and step), ALIGNED (whether they can be loaded at once). Blocks have 256 threads.

DEVICE i64 end_of(const Table& t, i64 i) { return t.ranges[2 * i] + t.ranges[2 * i + 1]; }

// The first segment that ends after element `at`, the same of a warp's threads. Its threads look at 32 segments at a time, because a
// load takes long and many at once take no longer.
DEVICE i64 first_after(const Table& t, i64 at) {
    i64 low = 0, high = t.count;
    while (low < high) {
        const i64 step = (high - low + 31) / 32, mine = low + (threadIdx.x & 31) * step;
        const int before = __popc(__ballot_sync(~0u, mine < high && end_of(t, mine) <= at));
        // The ends ascend: the one at `before - 1` is not after `at`, the next one is.
        const i64 found = low + before * step;
        if (before > 0) low += (before - 1) * step + 1;
        if (found < high) high = found;
    }
    return low;
}

// Whether the gradient scale says so.
DEVICE bool skips(const double* scale) { return *scale == -(double)INFINITY_F; }

// The first element that this thread updates.
DEVICE i64 first_element() { return ((i64)blockIdx.x * 256 + threadIdx.x) * VEC; }

// Updates this thread's elements, those that lie in segments. The optimiser has
//   Coefficients of(const double* settings)        what is the same for all elements of a segment
//   template <int N> void update(i64 at, const Coefficients& c)       N elements of a trainable segment
//   template <int N> void clear(i64 at)            the gradients of N elements
// A step that is skipped is one without trainable segments.
template <typename Optimiser> DEVICE void sweep(const Optimiser& o, const Table& t, bool skips) {
    const i64 at = first_element(), n = t.n;
    i64 i = first_after(t, at - (threadIdx.x & 31) * VEC);
    if (at >= n) return;
    // Neighbours of a warp rarely lie in other segments.
    while (i < t.count && end_of(t, i) <= at) i++;
    if (i == t.count) return;
    if (ALIGNED && t.ranges[2 * i] <= at && end_of(t, i) >= at + VEC) {
        const double* s = t.settings + 3 * i;
        if (s[2] != 0.0 && !skips) o.template update<VEC>(at, o.of(s)); else o.template clear<VEC>(at);
        return;
    }
    for (i64 e = at; e < at + VEC && e < n; e++) {
        while (i < t.count && end_of(t, i) <= e) i++;
        if (i == t.count) return;
        if (t.ranges[2 * i] > e) continue;
        const double* s = t.settings + 3 * i;
        if (s[2] != 0.0 && !skips) o.template update<1>(e, o.of(s)); else o.template clear<1>(e);
    }
}

template <int N> DEVICE void fetch(COMPUTE* x, const IN* p) {
    vec<IN, N> v = load<N>(p);
    #pragma unroll
    for (int i = 0; i < N; i++) x[i] = to<COMPUTE>(v.at[i]);
}

template <int N> DEVICE void put_all(IN* p, const COMPUTE* x) {
    vec<IN, N> v;
    #pragma unroll
    for (int i = 0; i < N; i++) v.at[i] = from<IN>(x[i]);
    store<N>(p, v);
}

template <int N> DEVICE void put_zeros(IN* p) {
    COMPUTE zeros[N];
    #pragma unroll
    for (int i = 0; i < N; i++) zeros[i] = (COMPUTE)0;
    put_all<N>(p, zeros);
}
