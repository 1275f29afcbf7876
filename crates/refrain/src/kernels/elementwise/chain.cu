// A chain of elementwise kernels in one loop: each element passes through all of them in registers, rounded to the dtype
// of each result on the way. Text that is written for the chain follows. It defines `elements`, from the texts of the kernels,
// each in a namespace of its own. Constants: RANK, VEC (elements of the last axis that one thread takes at once; 1 for any
// strides), DENSE (bit k: operand k steps by 1 along the last axis, else by 0; where VEC > 1), INDEX (type of offsets).

// The offset of the element at an index in operand K.
template <int K> DEVICE INDEX place(const ChainArgs& e, const INDEX* at) {
    INDEX offset = 0;
    #pragma unroll
    for (int d = 0; d < RANK; d++) offset += at[d] * (INDEX)e.strides[K][d];
    return offset;
}

template <int K, typename T, int N> DEVICE vec<T, N> fetch(const ChainArgs& e, const INDEX* at) {
    const T* p = reinterpret_cast<const T*>(e.operands[K]) + place<K>(e, at);
    if (N == 1 || (DENSE >> K & 1)) return load<N>(p);
    vec<T, N> v;
    T x = *p;
    #pragma unroll
    for (int i = 0; i < N; i++) v.at[i] = x;
    return v;
}

template <int K, typename T, int N> DEVICE void keep(const ChainArgs& e, const INDEX* at, const vec<T, N>& v) {
    store<N>(reinterpret_cast<T*>(e.operands[K]) + place<K>(e, at), v);
}

// Elements of pick `k` from `element` of its result on, all of one slice. An index out of range is reported, and gives `missing`.
template <typename ID, typename T, int N> DEVICE vec<T, N> pick(const ChainArgs& e, int k, INDEX element, u64 missing) {
    const INDEX count = (INDEX)e.picked[k][0], width = (INDEX)e.picked[k][2];
    const INDEX row = element / width, column = element - row * width, o = row / count;
    const i64 size = e.picked[k][1], named = reinterpret_cast<const ID*>(e.indices[k])[row - o * count];
    if ((u64)named < (u64)size) {
        return load<N>(reinterpret_cast<const T*>(e.tables[k]) + ((u64)o * size + named) * width + column);
    }
    if (column == 0) report(e.reporters[k], named, size);
    vec<T, N> v;
    #pragma unroll
    for (int i = 0; i < N; i++) v.at[i] = *reinterpret_cast<const T*>(&missing);
    return v;
}

DEVICE void locate(INDEX* at, const ChainArgs& e, INDEX first) {
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

template <int N> DEVICE void elements(const ChainArgs& e, INDEX first);

KERNEL(chain, ChainArgs, e) {
    INDEX n = (INDEX)e.n, step = (INDEX)gridDim.x * blockDim.x;
    INDEX thread = (INDEX)blockIdx.x * blockDim.x + threadIdx.x;
    for (INDEX i = thread; i < n / VEC; i += step) elements<VEC>(e, i * VEC);
    // The rest, if there is only one axis.
    if (VEC > 1 && thread < n % VEC) elements<1>(e, n / VEC * VEC + thread);
}

