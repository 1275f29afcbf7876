// What the passes of a reduction are given. Constants: COMPUTE (the arithmetic), SCALARS (how many numbers). The reducer's text between this one and the machine's defines
//   struct Local     what one thread makes of its elements
//   struct State     what some elements come to, of words of four bytes
//   DEVICE Local first();                                          of no elements
//   DEVICE void add(Local& l, const COMPUTE* x, i64 position, i64 result, const Reduction& r);
//   DEVICE State state(const Local& l);
//   DEVICE State merge(State a, State b);                          in whichever order
//   DEVICE void finish(const Reduction& r, i64 result, State s);   stores a result
// where x are the operands' elements at `position` along the reduced axis; and, if it likes, BOUNDS of the first pass.

struct Reduction {
    // The operands are [outer, n, inner], their reductions [outer, inner].
    i64 outer, n, inner;
    // How many pieces n is cut into, and how long each is.
    i64 pieces, piece;
    // The logarithm of the lanes of a row, or of the columns side by side.
    i64 shift;
    // Whether the first pass finishes the results.
    i64 direct;
    // The states that the second pass merges are [count, totals].
    i64 count, totals;
    u64 x[2];
    u64 partial;
    u64 y[4];
    // Whether results are added to what is there.
    i64 accumulate[4];
    // Addresses and numbers that the reducer knows the meaning of.
    u64 extra[4];
    double s[SCALARS];
};

template <typename S> DEVICE S exchange(const S& s, int distance) {
    union Bits { S s; u32 at[sizeof(S) / 4]; };
    static_assert(sizeof(S) % 4 == 0, "a state is made of words");
    Bits from, to;
    from.s = s;
    #pragma unroll
    for (int i = 0; i < (int)(sizeof(S) / 4); i++) to.at[i] = __shfl_xor_sync(FULL, from.at[i], distance);
    return to.s;
}

template <typename T, typename C> DEVICE void put_result(u64 base, i64 at, bool accumulate, C value) {
    T* p = reinterpret_cast<T*>(base) + at;
    if (accumulate) put<true>(p, value); else put<false>(p, value);
}

template <typename T> DEVICE const T* extra(const Reduction& r, int i) { return reinterpret_cast<const T*>(r.extra[i]); }
