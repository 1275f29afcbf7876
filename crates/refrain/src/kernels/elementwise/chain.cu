// A chain of elementwise kernels in one loop: each element passes through all of them in registers, rounded to the dtype
// of each result on the way. Text that is written for the chain follows. It defines `elements`, from the texts of the kernels,
// each in a namespace of its own. Constants: RANK, VEC (elements of the last axis that one thread takes at once; 1 for any
// strides), DENSE (bit k: operand k steps by 1 along the last axis, else by 0; where VEC > 1), INDEX (type of offsets).

// A value of which the compiler does not know where it comes from. It must not contract a product and a sum of two
// kernels to one rounding. `e.zero` is 0.
DEVICE float unknown(float x, u64 zero) {
    u32 y;
    asm volatile("xor.b32 %0, %1, %2;" : "=r"(y) : "r"(__float_as_uint(x)), "r"((u32)zero));
    return __uint_as_float(y);
}
DEVICE double unknown(double x, u64 zero) {
    i64 y;
    asm volatile("xor.b64 %0, %1, %2;" : "=l"(y) : "l"(__double_as_longlong(x)), "l"((i64)zero));
    return __longlong_as_double(y);
}
DEVICE i64 unknown(i64 x, u64) { return x; }

// An operand of a kernel in its arithmetic.
template <typename C, typename T> DEVICE C given(T x, const ChainArgs& e) { return unknown(to<C>(x), e.zero); }

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

// The random words of N elements from `first` on, which is a multiple of N.
template <int N> struct Drawn { u32 at[N]; };
template <int N> DEVICE Drawn<N> draw(u64 state, u64 offset, u64 first) {
    const i64* generator = reinterpret_cast<const i64*>(state);
    const u64 seed = (u64)generator[0], block = (u64)generator[1] + offset + first / 4;
    Drawn<N> drawn;
    #pragma unroll
    for (int b = 0; b < N; b += 4) {
        Words w = philox(seed, block + (u64)(b / 4));
        #pragma unroll
        for (int j = 0; j < 4 && b + j < N; j++) {
            u32 k = N < 4 ? (u32)(first + j) % 4 : (u32)j;
            drawn.at[b + j] = k == 0 ? w.at[0] : k == 1 ? w.at[1] : k == 2 ? w.at[2] : w.at[3];
        }
    }
    return drawn;
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

