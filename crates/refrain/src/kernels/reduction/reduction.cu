// What reducers know of a reduction. Constant: COMPUTE (the arithmetic). The reducer's text between this one and the machine's defines
//   struct Local     what one thread makes of its elements
//   struct State     what some elements come to, of words of four bytes
//   DEVICE Local first(const Reduction& r, i64 total, i64 at);      of no elements of a total, whose first one is at `at`
//   DEVICE void add(Local& l, const COMPUTE* x, i64 position, i64 result, const Reduction& r);
//   DEVICE State state(const Local& l);
//   DEVICE State merge(State a, State b);                          commutative
//   DEVICE void finish(const Reduction& r, i64 result, State s);   stores a result
// where x holds the operands' elements at `position` along the reduced axis. It may define BOUNDS of the first pass.

template <typename T, typename C> DEVICE void put_result(u64 base, i64 at, bool accumulate, C value) {
    T* p = reinterpret_cast<T*>(base) + at;
    if (accumulate) put<true>(p, value); else put<false>(p, value);
}

template <typename T> DEVICE const T* extra(const Reduction& r, int i) { return reinterpret_cast<const T*>(r.extra[i]); }

// Where the first element of a total lies.
DEVICE i64 first_place(const Reduction& r, i64 total) {
    if (r.inner == 1) return total * r.step[0];
    i64 slab = r.outer == 1 ? 0 : total / r.inner;
    return slab * (r.n - 1) * r.inner + total;
}
