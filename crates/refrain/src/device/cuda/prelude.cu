// The start of every kernel source. No CUDA headers, so that the run-time compiler needs none.

typedef double f64_t;
typedef float f32_t;
struct f16_t { unsigned short bits; };
struct bf16_t { unsigned short bits; };
typedef long long i64_t;
typedef int i32_t;
typedef unsigned char u8_t;
typedef unsigned char bool_t;

typedef long long i64;
typedef unsigned long long u64;
typedef unsigned int u32;

#define DEVICE __device__ __forceinline__

// Waits for the launches that this one depends on, which in a recorded step may not have ended when it begins (CUDA C++
// Programming Guide, "Programmatic Dependent Launch"). What comes after sees all that they wrote.
DEVICE void wait_for_dependencies() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Lets the launches that depend on this one begin when all its blocks have said so, as far as there is room for theirs. They
// wait for its end themselves. It comes after the wait, so that no more than the next launches take room ahead of their time.
DEVICE void let_dependents_begin() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// Waits, and lets the next launches begin.
DEVICE void take_turn() {
    wait_for_dependencies();
    let_dependents_begin();
}

// A kernel, which is told a struct: KERNEL(softmax_rows, SoftmaxRows, p) { ... p.width ... }. The struct is declared in
// Rust, by `params!`. What follows its name goes before the kernel's: KERNEL(.., p, __launch_bounds__(256)). Every kernel
// begins by taking its turn, except by KERNEL_THAT_WAITS: that one calls `take_turn` itself, once in each thread, before it returns
// and before it touches memory. What it computes before overlaps the end of the launches that it waits for.
#define KERNEL(NAME, STRUCT, P, ...) \
    DEVICE void NAME##_body(const STRUCT& P); \
    extern "C" __global__ void __VA_ARGS__ NAME(const __grid_constant__ STRUCT P) { \
        take_turn(); \
        NAME##_body(P); \
    } \
    DEVICE void NAME##_body(const STRUCT& P)
#define KERNEL_THAT_WAITS(NAME, STRUCT, P, ...) \
    extern "C" __global__ void __VA_ARGS__ NAME(const __grid_constant__ STRUCT P)

#define INFINITY_F __int_as_float(0x7f800000)
#define NAN_F __int_as_float(0x7fffffff)

// ---- Element types: `to<C>(x)` converts to the arithmetic type, `from<T>(c)` rounds to nearest even.

// The arithmetic type: f64 for f64, f32 for the other floats, i64 for integers and bool.
template <typename T> struct arithmetic { typedef i64 type; };
template <> struct arithmetic<f64_t> { typedef double type; };
template <> struct arithmetic<f32_t> { typedef float type; };
template <> struct arithmetic<f16_t> { typedef float type; };
template <> struct arithmetic<bf16_t> { typedef float type; };

DEVICE float widen(f16_t x) { float y; asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits)); return y; }
DEVICE float widen(bf16_t x) { return __uint_as_float((u32)x.bits << 16); }
DEVICE double widen(f64_t x) { return x; }
DEVICE float widen(f32_t x) { return x; }
DEVICE i64 widen(i64_t x) { return x; }
DEVICE i64 widen(i32_t x) { return x; }
DEVICE i64 widen(u8_t x) { return x; }

// Conversion between arithmetic types. Floats become integers by truncation, clamped to the range; NaN becomes 0.
template <typename C> struct cast_to;
template <> struct cast_to<double> { template <typename S> static DEVICE double of(S x) { return (double)x; } };
template <> struct cast_to<float> { template <typename S> static DEVICE float of(S x) { return (float)x; } };
template <> struct cast_to<i64> {
    static DEVICE i64 of(i64 x) { return x; }
    static DEVICE i64 of(double x) { return x == x ? __double2ll_rz(x) : 0; }
    static DEVICE i64 of(float x) { return x == x ? __float2ll_rz(x) : 0; }
};

template <typename C, typename T> DEVICE C to(T x) { return cast_to<C>::of(widen(x)); }

// A float whose last bit is set if the number was not exact, so that a second rounding is still correct.
DEVICE float round_to_odd(double x) {
    float y = __double2float_rz(x);
    return (double)y == x || x != x ? y : __uint_as_float(__float_as_uint(y) | 1u);
}
DEVICE float round_to_odd(i64 x) {
    // Rounded towards zero, it stays in the range of an i64.
    float y = __ll2float_rz(x);
    return __float2ll_rz(y) == x ? y : __uint_as_float(__float_as_uint(y) | 1u);
}

template <typename T> struct store_as;
template <> struct store_as<f64_t> { template <typename C> static DEVICE f64_t of(C c) { return (double)c; } };
template <> struct store_as<f32_t> { template <typename C> static DEVICE f32_t of(C c) { return (float)c; } };
template <> struct store_as<f16_t> {
    static DEVICE f16_t of(float c) { f16_t y; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(c)); return y; }
    static DEVICE f16_t of(double c) { return of(round_to_odd(c)); }
    static DEVICE f16_t of(i64 c) { return of(round_to_odd(c)); }
};
template <> struct store_as<bf16_t> {
    static DEVICE bf16_t of(float c) { bf16_t y; asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(c)); return y; }
    static DEVICE bf16_t of(double c) { return of(round_to_odd(c)); }
    static DEVICE bf16_t of(i64 c) { return of(round_to_odd(c)); }
};
template <> struct store_as<i64_t> { template <typename C> static DEVICE i64_t of(C c) { return cast_to<i64>::of(c); } };
template <> struct store_as<i32_t> { template <typename C> static DEVICE i32_t of(C c) { return (int)cast_to<i64>::of(c); } };
template <> struct store_as<u8_t> { template <typename C> static DEVICE u8_t of(C c) { return (u8_t)cast_to<i64>::of(c); } };

template <typename T, typename C> DEVICE T from(C c) { return store_as<T>::of(c); }

// A sum that is rounded, whatever becomes of it.
DEVICE float sum_of(float a, float b) { return __fadd_rn(a, b); }
DEVICE double sum_of(double a, double b) { return __dadd_rn(a, b); }
// A product that is rounded, and one that is added to `c` before it is rounded.
DEVICE float product_of(float a, float b) { return __fmul_rn(a, b); }
DEVICE double product_of(double a, double b) { return __dmul_rn(a, b); }
DEVICE float product_plus(float a, float b, float c) { return __fmaf_rn(a, b, c); }
DEVICE double product_plus(double a, double b, double c) { return __fma_rn(a, b, c); }

// `N` elements that are loaded and stored at once.
template <typename T, int N> struct __align__(sizeof(T) * N) vec { T at[N]; };
template <int N, typename T> DEVICE vec<T, N> load(const T* p) { return *reinterpret_cast<const vec<T, N>*>(p); }
template <int N, typename T> DEVICE void store(T* p, const vec<T, N>& v) { *reinterpret_cast<vec<T, N>*>(p) = v; }

// `N` elements of two bytes or more from any address: at once where it is a multiple of theirs together, otherwise by words.
template <int N, typename T> DEVICE vec<T, N> load_anywhere(const T* p) {
    static_assert(sizeof(T) >= 2 && N * sizeof(T) % 4 == 0, "elements are made of words, or two of them are one");
    constexpr int WORDS = N * (int)sizeof(T) / 4;
    if ((u64)p % (N * sizeof(T)) == 0) return load<N>(p);
    union Bits { vec<T, N> v; u32 words[WORDS]; unsigned short halves[2 * WORDS]; } bits;
    if ((u64)p % 4 == 0) {
        #pragma unroll
        for (int i = 0; i < WORDS; i++) bits.words[i] = reinterpret_cast<const u32*>(p)[i];
        return bits.v;
    }
    const unsigned short* halves = reinterpret_cast<const unsigned short*>(p);
    bits.halves[0] = halves[0];
    #pragma unroll
    for (int i = 1; i < WORDS; i++) {
        u32 both = *reinterpret_cast<const u32*>(halves + 2 * i - 1);
        bits.halves[2 * i - 1] = (unsigned short)both;
        bits.halves[2 * i] = (unsigned short)(both >> 16);
    }
    bits.halves[2 * WORDS - 1] = halves[2 * WORDS - 1];
    return bits.v;
}

// `N` elements as `to` makes numbers of them. Two of bf16 are one word, which the compiler would take apart first.
template <typename C, typename T, int N> DEVICE vec<C, N> to_all(const vec<T, N>& v) {
    vec<C, N> c;
    #pragma unroll
    for (int i = 0; i < N; i++) c.at[i] = to<C>(v.at[i]);
    return c;
}
template <typename C, int N> DEVICE vec<C, N> to_all(const vec<bf16_t, N>& v) {
    vec<C, N> c;
    #pragma unroll
    for (int i = 0; i + 1 < N; i += 2) {
        u32 both;
        asm("mov.b32 %0, {%1, %2};" : "=r"(both) : "h"(v.at[i].bits), "h"(v.at[i + 1].bits));
        c.at[i] = cast_to<C>::of(__uint_as_float(both << 16));
        c.at[i + 1] = cast_to<C>::of(__uint_as_float(both & 0xffff0000u));
    }
    if (N % 2) c.at[N - 1] = to<C>(v.at[N - 1]);
    return c;
}

// `N` numbers as `from` makes elements of them. Those of 16 bits are rounded two by two, by one instruction.
template <typename T> struct pair_as {
    template <typename C> static DEVICE void of(const C* c, T* y) {
        y[0] = from<T>(c[0]);
        y[1] = from<T>(c[1]);
    }
};
DEVICE void halves(u32 both, unsigned short& low, unsigned short& high) {
    asm("mov.b32 {%0, %1}, %2;" : "=h"(low), "=h"(high) : "r"(both));
}
template <> struct pair_as<f16_t> {
    template <typename C> static DEVICE void of(const C* c, f16_t* y) {
        y[0] = from<f16_t>(c[0]);
        y[1] = from<f16_t>(c[1]);
    }
    static DEVICE void of(const float* c, f16_t* y) {
        u32 both;
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(c[1]), "f"(c[0]));
        halves(both, y[0].bits, y[1].bits);
    }
};
template <> struct pair_as<bf16_t> {
    template <typename C> static DEVICE void of(const C* c, bf16_t* y) {
        y[0] = from<bf16_t>(c[0]);
        y[1] = from<bf16_t>(c[1]);
    }
    static DEVICE void of(const float* c, bf16_t* y) {
        u32 both;
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(c[1]), "f"(c[0]));
        halves(both, y[0].bits, y[1].bits);
    }
};
template <typename T, int N, typename C> DEVICE vec<T, N> round_all(const C* c) {
    vec<T, N> v;
    #pragma unroll
    for (int i = 0; i + 1 < N; i += 2) pair_as<T>::of(c + i, v.at + i);
    if (N % 2) v.at[N - 1] = from<T>(c[N - 1]);
    return v;
}

// Units in which elements are moved that nothing is computed of.

typedef unsigned char unit1;
typedef unsigned short unit2;
typedef u32 unit4;
typedef u64 unit8;
typedef ulonglong2 unit16;

// A unit filled with copies of the element whose bits fill eight bytes.
template <typename U> struct filled { static DEVICE U with(u64 bits) { return (U)bits; } };
template <> struct filled<unit16> { static DEVICE unit16 with(u64 bits) { return make_ulonglong2(bits, bits); } };

// `to = value`, or `to += value` in the arithmetic type if ADD.
template <bool ADD, typename T, typename C> DEVICE void put(T* to, C value) {
    *to = from<T>(ADD ? (C)(::to<C>(*to) + value) : value);
}

// ---- Arithmetic with common names for float and double.

DEVICE float exp_(float x) { return expf(x); }
DEVICE double exp_(double x) { return exp(x); }
DEVICE float log_(float x) { return logf(x); }
DEVICE double log_(double x) { return log(x); }
DEVICE float log1p_(float x) { return log1pf(x); }
DEVICE double log1p_(double x) { return log1p(x); }
DEVICE float expm1_(float x) { return expm1f(x); }
DEVICE double expm1_(double x) { return expm1(x); }
DEVICE float sqrt_(float x) { return sqrtf(x); }
DEVICE double sqrt_(double x) { return sqrt(x); }
DEVICE float sin_(float x) { return sinf(x); }
DEVICE double sin_(double x) { return sin(x); }
DEVICE float cos_(float x) { return cosf(x); }
DEVICE double cos_(double x) { return cos(x); }
DEVICE float tanh_(float x) { return tanhf(x); }
DEVICE double tanh_(double x) { return tanh(x); }
DEVICE float erf_(float x) { return erff(x); }
DEVICE double erf_(double x) { return erf(x); }
DEVICE float pow_(float x, float y) { return powf(x, y); }
DEVICE double pow_(double x, double y) { return pow(x, y); }
DEVICE float floor_(float x) { return floorf(x); }
DEVICE double floor_(double x) { return floor(x); }
DEVICE float ceil_(float x) { return ceilf(x); }
DEVICE double ceil_(double x) { return ceil(x); }
DEVICE float round_(float x) { return rintf(x); }
DEVICE double round_(double x) { return rint(x); }
DEVICE float abs_(float x) { return fabsf(x); }
DEVICE double abs_(double x) { return fabs(x); }
DEVICE i64 abs_(i64 x) { return x < 0 ? (i64)(0 - (u64)x) : x; }
template <typename C> DEVICE bool is_nan(C x) { return x != x; }
// The lowest number of a type: the start of a maximum.
template <typename C> struct limits;
template <> struct limits<float> {
    static DEVICE float lowest() { return -INFINITY_F; }
    static DEVICE float highest() { return INFINITY_F; }
};
template <> struct limits<double> {
    static DEVICE double lowest() { return -(double)INFINITY_F; }
    static DEVICE double highest() { return (double)INFINITY_F; }
};
template <> struct limits<i64> {
    static DEVICE i64 lowest() { return (i64)0x8000000000000000ull; }
    static DEVICE i64 highest() { return 0x7fffffffffffffffll; }
};
// The hardware's approximations, within about 2 units in the last place. Subnormal numbers are 0.
DEVICE float reciprocal_approx(float x) { float y; asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
DEVICE float exp2_approx(float x) { float y; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
// A quotient by a number from 1 to 64 (by 0: NaN): the hardware's reciprocal and two Newton steps, without the branch
// that other divisors need.
DEVICE double quotient(double a, double b) { return a / b; }
DEVICE float quotient(float a, float b) {
    float r = reciprocal_approx(b);
    r = fmaf(r, fmaf(-b, r, 1.0f), r);
    float q = a * r;
    return fmaf(fmaf(-b, q, a), r, q);
}
template <typename C> DEVICE C sigmoid_(C x) {
    // Written so that the exponential does not overflow.
    C e = exp_(-abs_(x));
    return quotient(x >= (C)0 ? (C)1 : e, (C)1 + e);
}

// ---- Reductions within a warp and within a block, always in the same order.

#define FULL 0xffffffffu

struct Add { template <typename C> DEVICE C operator()(C a, C b) const { return a + b; } };
// The larger number; NaN wins.
struct Max { template <typename C> DEVICE C operator()(C a, C b) const { return a > b || is_nan(a) ? a : b; } };
struct Min { template <typename C> DEVICE C operator()(C a, C b) const { return a < b || is_nan(a) ? a : b; } };

// What the lane at `distance` (its number differs in those bits) has.
template <typename S> DEVICE S exchange(const S& s, int distance) {
    union Bits { S s; u32 at[sizeof(S) / 4]; };
    static_assert(sizeof(S) % 4 == 0, "a state is made of words");
    Bits from, to;
    from.s = s;
    #pragma unroll
    for (int i = 0; i < (int)(sizeof(S) / 4); i++) to.at[i] = __shfl_xor_sync(FULL, from.at[i], distance);
    return to.s;
}

// Combines the lanes of groups of WIDTH; every lane of a group gets the result.
template <int WIDTH, typename C, typename F> DEVICE C warp_reduce(C x, F f) {
    #pragma unroll
    for (int d = WIDTH / 2; d > 0; d /= 2) x = f(x, __shfl_xor_sync(FULL, x, d, WIDTH));
    return x;
}
template <typename C> DEVICE C warp_sum(C x) { return warp_reduce<32>(x, Add()); }
template <typename C> DEVICE C warp_max(C x) { return warp_reduce<32>(x, Max()); }

// Combines all threads of a block; every thread gets the result. THREADS is a multiple of 32.
template <int THREADS, typename C, typename F> DEVICE C block_reduce(C x, C first, F f) {
    __shared__ C partial[32];
    x = warp_reduce<32>(x, f);
    if (THREADS == 32) return x;
    __syncthreads();
    if ((threadIdx.x & 31) == 0) partial[threadIdx.x >> 5] = x;
    __syncthreads();
    x = (threadIdx.x & 31) < THREADS / 32 ? partial[threadIdx.x & 31] : first;
    return warp_reduce<32>(x, f);
}
template <int THREADS, typename C> DEVICE C block_sum(C x) { return block_reduce<THREADS>(x, (C)0, Add()); }

// ---- Indices out of range, which the host finds at its next wait for the device.

// Keeps the first report. `slot` is four words of host memory, of the stream: who reports (0: nobody so far), the index,
// the number of places, and whether a thread is writing these, so that one report has the words of one thread.
template <typename Reporter> DEVICE void report(const Reporter& to, i64 index, i64 places) {
    if (to.slot[0] != 0 || atomicCAS(const_cast<u64*>(to.slot + 3), (u64)0, (u64)1) != 0) return;
    to.slot[1] = (u64)index;
    to.slot[2] = (u64)places;
    __threadfence_system();
    to.slot[0] = to.origin;
}

// ---- Philox 4x32-10 (Salmon, Moraes, Dror and Shaw, 2011): turns a counter into four random words.

struct Words { u32 at[4]; };

DEVICE Words philox(u64 seed, u64 block) {
    u32 c0 = (u32)block, c1 = (u32)(block >> 32), c2 = 0, c3 = 0;
    u32 k0 = (u32)seed, k1 = (u32)(seed >> 32);
    #pragma unroll
    for (int i = 0; i < 10; i++) {
        u32 a_low = 0xD2511F53u * c0, a_high = __umulhi(0xD2511F53u, c0);
        u32 b_low = 0xCD9E8D57u * c2, b_high = __umulhi(0xCD9E8D57u, c2);
        c0 = b_high ^ c1 ^ k0;
        c1 = b_low;
        c2 = a_high ^ c3 ^ k1;
        c3 = a_low;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return Words{{c0, c1, c2, c3}};
}

// Which random words keep their elements: those that are at least a number, which may be 2^32.
struct Threshold {
    u32 least;
    bool reached;
    DEVICE explicit Threshold(i64 words) : least((u32)words), reached(words >> 32 == 0) {}
    DEVICE bool keeps(u32 word) const { return word >= least && reached; }
};
