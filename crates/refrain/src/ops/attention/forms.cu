// What both kinds of attention on tensor cores share: the number formats of operands, the exponential, and neighbouring scores.

// FORM: f32 as the sum of two TF32 numbers; rounded to TF32; rounded to bf16.
#define SPLIT_TF32 0
#define TF32 1
#define BF16 2

// TF32 numbers per number, and how many of their products count.
constexpr int PARTS = FORM == SPLIT_TF32 ? 2 : 1;
constexpr int TERMS = FORM == SPLIT_TF32 ? 3 : 1;

constexpr float LOG2_E = 1.4426950408889634f;

DEVICE float exp2_(float x) {
    float e;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(x));
    return e;
}

// Converts to TF32. f16 is exact in TF32. For numbers computed here, the conversion compensates on average for the
// truncation.
template <bool READ> DEVICE u32 rounded(float x) {
    if (!READ) return __float_as_uint(fmaf(x, 0x1.8p-12f, x));
    return sizeof(IN) == 2 ? __float_as_uint(x) : round_tf32(x);
}

// 1 / the sum of the exponentials of a row. Rows without weight have output 0 and gradient 0 if scores are added, which may be a mask.
DEVICE float inverse_of(float total) { return BEFORE && total == 0 ? 0.0f : quotient(1.0f, total); }

// What a lane holds of a left operand of 16 rows, and of a right one of 8 columns.
struct Left { u32 at[PARTS][4]; };
struct Right { u32 at[PARTS][2]; };

// Adds a term of a product. Small terms come first.
DEVICE void multiply(float* d, const Left& a, const Right& b, int term) {
    const u32* x = a.at[TERMS > 1 && term == 0 ? PARTS - 1 : 0];
    const u32* y = b.at[TERMS > 1 && term == 1 ? PARTS - 1 : 0];
    if (FORM == BF16) multiply_bf16(d, x, y);
    else multiply_tf32(d, x[0], x[1], x[2], x[3], y[0], y[1]);
}

// Two neighbouring numbers that are loaded, stored or rounded at once: of two bytes, they are one word.
template <typename T> struct Two {
    static DEVICE vec<T, 2> of(u32) { return {}; }
    static DEVICE vec<T, 2> round(float x, float y) { return {{from<T>(x), from<T>(y)}}; }
};
template <typename T> struct Short {
    static DEVICE vec<T, 2> of(u32 x) { return {{{(unsigned short)x}, {(unsigned short)(x >> 16)}}}; }
};
template <> struct Two<bf16_t> : Short<bf16_t> {
    static DEVICE vec<bf16_t, 2> round(float x, float y) { return of(pack_bf16(x, y)); }
};
template <> struct Two<f16_t> : Short<f16_t> {
    static DEVICE vec<f16_t, 2> round(float x, float y) { return of(pack_f16(x, y)); }
};

// Two neighbouring scores of a query from `at` on, as far as they are there; others are 0.
DEVICE vec<IN, 2> take_scores(const IN* at, bool first, bool second) {
    vec<IN, 2> v = {};
    if (SCORE_VEC > 1 && sizeof(IN) == 2) {
        v = Two<IN>::of(first ? *reinterpret_cast<const u32*>(at) : 0);
    } else if (SCORE_VEC > 1) {
        if (first) v = load<2>(at);
    } else {
        if (first) v.at[0] = at[0];
        if (second) v.at[1] = at[1];
    }
    return v;
}

// Scales two neighbouring scores, and adds those before.
DEVICE void add_scores(float* s, float factor, const vec<IN, 2>& before) {
    #pragma unroll
    for (int e = 0; e < 2; e++) s[e] = fmaf(s[e], factor, to<float>(before.at[e]));
}
// The same with those that lie from `at` on.
DEVICE void add_before(float* s, float factor, const IN* at, bool first, bool second) {
    add_scores(s, factor, BEFORE ? take_scores(at, first, second) : vec<IN, 2>{});
}

// Stores two neighbouring scores of a query from `at` on, as far as they are there.
DEVICE void put_scores(IN* at, const vec<IN, 2>& v, bool first, bool second) {
    if (!first) return;
    if (SCORE_VEC > 1) {
        store<2>(at, v);
    } else {
        at[0] = v.at[0];
        if (second) at[1] = v.at[1];
    }
}

// The same for the next layer; 0 for keys that the query does not see.
DEVICE void write_scores(const Job& j, const float* s, IN* at, int query, int key, bool first, bool second) {
    float x = is_before(j, key, query) ? s[0] : 0.0f, y = is_before(j, key + 1, query) ? s[1] : 0.0f;
    if (AFTER) put_scores(at, Two<IN>::round(x, y), first, second);
}
