// Activation functions, for elementwise kernels and for the end of a matrix product. Constants: OUT_SIZE or C_TYPE_SIZE, the bytes
// of a result.

#if defined(OUT_SIZE) && OUT_SIZE == 2 || defined(C_TYPE_SIZE) && C_TYPE_SIZE == 2
#define NARROW_RESULTS
#endif

template <typename R> DEVICE R relu_(R x) { return x < (R)0 ? (R)0 : x; }
template <typename R> DEVICE R gelu_(R x) { return (R)0.5 * x * ((R)1 + erf_(x * (R)0.70710678118654752440)); }
#ifdef NARROW_RESULTS
// For 16-bit results: the tail of the normal distribution beyond |x|, relative to exp(-x^2 / 2), within 5e-6 of itself up to 12 (a fit by
// least squares, reweighted until the errors are even), and that exponential, times 2^24, so that it becomes subnormal only if the
// result does.
DEVICE float normal_tail(float x) {
    float t;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(t) : "f"(fmaf(0.304055915f, fabsf(x), 1.0f)));
    float y = fmaf(t, -0.0771867467f, 0.204989751f);
    y = fmaf(t, y, -0.00705197147f);
    y = fmaf(t, y, 0.141568531f);
    y = fmaf(t, y, 0.11603281f);
    return t * fmaf(t, y, 0.121649643f);
}
DEVICE float normal_bell(float x) {
    float e;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(fmaf(-0.721347520444481704f * x, x, 24.0f)));
    return e;
}
constexpr float BELL_UNIT = 1.0f / 16777216.0f;
DEVICE float gelu_(float x) {
    float beyond = normal_tail(x) * normal_bell(x);
    return x >= 0.0f ? x * (1.0f - beyond * BELL_UNIT) : x * beyond * BELL_UNIT;
}
DEVICE float gelu_derivative(float x) {
    float bell = normal_bell(x) * BELL_UNIT, beyond = normal_tail(x) * bell;
    return (x >= 0.0f ? 1.0f - beyond : beyond) + x * (0.39894228040143267794f * bell);
}
#endif
// 2 sqrt(2/pi) (x + 0.044715 x^3)
template <typename R> DEVICE R gelu_logit(R x) {
    return x * ((R)1.59576912160573071176 + (R)0.07135481627260025 * (x * x));
}
// x/2 (1 + tanh(u)) equals x sigmoid(2u), which stays accurate where tanh is near -1.
template <typename R> DEVICE R gelu_tanh_(R x) { return x * sigmoid_(gelu_logit(x)); }
template <typename R> DEVICE R silu_(R x) { return x * sigmoid_(x); }
#undef NARROW_RESULTS

