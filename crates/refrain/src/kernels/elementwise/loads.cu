// The operands in memory of elementwise kernels that share a loop, which is told `e`. Constants: RANK, DENSE (bit k: operand k steps by 1
// along the last axis, else by 0; where several elements are taken at once), INDEX (type of offsets).

// The offset of the element at an index in operand K.
template <int K, typename E> DEVICE INDEX place(const E& e, const INDEX* at) {
    INDEX offset = 0;
    #pragma unroll
    for (int d = 0; d < RANK; d++) offset += at[d] * (INDEX)e.strides[K][d];
    return offset;
}

template <int K, typename T, int N, typename E> DEVICE vec<T, N> fetch(const E& e, const INDEX* at) {
    const T* p = reinterpret_cast<const T*>(e.operands[K]) + place<K>(e, at);
    if (N == 1 || (DENSE >> K & 1)) return load<N>(p);
    vec<T, N> v;
    T x = *p;
    #pragma unroll
    for (int i = 0; i < N; i++) v.at[i] = x;
    return v;
}

template <int K, typename T, int N, typename E> DEVICE void keep(const E& e, const INDEX* at, const vec<T, N>& v) {
    store<N>(reinterpret_cast<T*>(e.operands[K]) + place<K>(e, at), v);
}

// Elements of pick `k` from `element` of its result on, all of one slice; of an index out of range `missing`, and `bad` becomes that index.
// It is reported later: a branch would keep the loads of several slices apart. FLAT: there is nothing before the axis of the slices.
template <typename ID, typename T, int N, bool FLAT, typename E>
DEVICE vec<T, N> pick(const E& e, int k, INDEX element, u64 missing, i64* bad) {
    const INDEX count = (INDEX)e.picked[k][0], width = (INDEX)e.picked[k][2];
    const INDEX row = element / width, column = element - row * width, o = FLAT ? 0 : row / count;
    const i64 size = e.picked[k][1], named = reinterpret_cast<const ID*>(e.indices[k])[row - o * count];
    const bool fits = (u64)named < (u64)size;
    vec<T, N> v = load<N>(reinterpret_cast<const T*>(e.tables[k]) + ((u64)o * size + (fits ? named : 0)) * width + column);
    #pragma unroll
    for (int i = 0; i < N; i++) v.at[i] = fits ? v.at[i] : *reinterpret_cast<const T*>(&missing);
    bad[k] = fits ? bad[k] : named;
    return v;
}

// Reports what `bad` has become of pick `k`. Before, it is 0.
template <typename E> DEVICE void report_bad(const E& e, int k, const i64* bad) {
    if ((u64)bad[k] >= (u64)e.picked[k][1]) report(e.reporters[k], bad[k], e.picked[k][1]);
}

template <typename E> DEVICE void locate(INDEX* at, const E& e, INDEX first) {
    INDEX rest = first;
    #pragma unroll
    for (int d = RANK - 1; d > 0; d--) {
        INDEX size = (INDEX)e.shape[d];
        INDEX q = rest / size;
        at[d] = rest - q * size;
        rest = q;
    }
    at[0] = rest;
}
