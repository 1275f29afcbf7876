// Batch norm element by element, forward and backward. Constants: COMPUTE (the arithmetic), IN (dtype of elements), PARAMETER (of
// parameters), INDEX (the type of offsets), VEC (elements that a thread takes at once, of one channel each or all of one), ALIGNED
// (whether they can be loaded at once), ADD, MERGES (whether each block merges the partial sums of all channels, of which there are
// at most THREADS; one block stores the results, when its elements are done), RUNNING (whether each block computes with the running
// statistics of all channels, of which there are at most THREADS), TAIL (whether elementwise kernels follow, as tail.cu says), STORES
// (whether the result is stored, or read by the tail alone).
//
// The text behind this one (forward.cu, backward.cu) says what is computed, by `Args`, `Loaded`, `Channel`, `Channels` and `Found`; the
// pass over all elements (pass.cu) follows.

#define THREADS MERGE_THREADS

DEVICE vec<IN, VEC> fetch(const IN* p) {
    if (ALIGNED) return load<VEC>(p);
    vec<IN, VEC> v;
    #pragma unroll
    for (int i = 0; i < VEC; i++) v.at[i] = p[i];
    return v;
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

#if !TAIL
namespace tail {
struct Begun {};
template <typename A> DEVICE Begun begin(const A&) { return {}; }
template <int N> struct Operands {};
template <int N, bool WHOLE, typename A> DEVICE Operands<N> fetch(const A&, i64, int, int) { return {}; }
template <int N, bool WHOLE, typename A, typename T>
DEVICE vec<T, N> follow(const A&, const Begun&, i64, int, int, const Operands<N>&, const vec<T, N>& c, const vec<T, N>&) { return c; }
}
#endif
