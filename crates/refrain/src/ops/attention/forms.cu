// What both kinds of attention on tensor cores share: the number formats of operands, and the exponential.

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
