// Values that pass from one elementwise kernel to the next in registers, and random words for them.

// A value of which the compiler does not know where it comes from. It must not contract a product and a sum of two
// kernels to one rounding. `zero` is 0.
DEVICE float unknown(float x, u64 zero) {
    u32 y;
    asm("xor.b32 %0, %1, %2;" : "=r"(y) : "r"(__float_as_uint(x)), "r"((u32)zero));
    return __uint_as_float(y);
}
DEVICE double unknown(double x, u64 zero) {
    i64 y;
    asm("xor.b64 %0, %1, %2;" : "=l"(y) : "l"(__double_as_longlong(x)), "l"((i64)zero));
    return __longlong_as_double(y);
}
DEVICE i64 unknown(i64 x, u64) { return x; }

// Elements of an operand in the arithmetic of a kernel. What the kernel is told has a `zero`. Only numbers that have not been
// rounded to another type can be contracted.
template <typename C, typename T, int N, typename E> DEVICE vec<C, N> given(const vec<T, N>& v, const E& e) {
    vec<C, N> c = to_all<C>(v);
    if constexpr (sizeof(C) == sizeof(T)) {
        #pragma unroll
        for (int i = 0; i < N; i++) c.at[i] = unknown(c.at[i], e.zero);
    }
    return c;
}

// Random words: those of a generator from a block on.
struct Stream {
    u64 seed, block;
    DEVICE Stream from(int blocks) const { return {seed, block + (u64)blocks}; }
};
DEVICE Stream stream(u64 state, u64 offset) {
    const i64* generator = reinterpret_cast<const i64*>(state);
    return {(u64)generator[0], (u64)generator[1] + offset};
}

// The random words of N elements from `first` on, which is a multiple of N.
template <int N> struct Drawn { u32 at[N]; };
template <int N> DEVICE Drawn<N> draw(const Stream& stream, u64 first) {
    Drawn<N> drawn;
    #pragma unroll
    for (int b = 0; b < N; b += 4) {
        Words w = philox(stream.seed, stream.block + first / 4 + (u64)(b / 4));
        #pragma unroll
        for (int j = 0; j < 4 && b + j < N; j++) {
            u32 k = N < 4 ? (u32)(first + j) % 4 : (u32)j;
            drawn.at[b + j] = k == 0 ? w.at[0] : k == 1 ? w.at[1] : k == 2 ? w.at[2] : w.at[3];
        }
    }
    return drawn;
}
