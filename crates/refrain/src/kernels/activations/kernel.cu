// Activation functions, for elementwise kernels and for the end of a matrix product. Constants: OUT_SIZE or C_TYPE_SIZE, the bytes
// of a result.

#if defined(OUT_SIZE) && OUT_SIZE == 2 || defined(C_TYPE_SIZE) && C_TYPE_SIZE == 2
#define NARROW_RESULTS
#endif

// The logistic function. For results of 16 bits, the hardware's approximate exponential and reciprocal are exact enough. The
// exponential has a factor of 2^24, so that it becomes subnormal only if the result does.
template <typename R> DEVICE R logistic(R x) { return sigmoid_(x); }
#ifdef NARROW_RESULTS
DEVICE float logistic(float x) {
    float e = exp2_approx(24.0f - 1.4426950408889634f * fabsf(x));
    return (x >= 0.0f ? 16777216.0f : e) * reciprocal_approx(16777216.0f + e);
}
#endif

template <typename R> DEVICE R relu_(R x) { return x < (R)0 ? (R)0 : x; }

// GELU is x F(x), with the distribution function F of the normal distribution; its derivative is F(x) + x F'(x).
template <typename R> DEVICE R gelu_(R x) { return (R)0.5 * x * ((R)1 + erf_(x * (R)0.70710678118654752440)); }
template <typename R> DEVICE R gelu_derivative(R x) {
    R density = (R)0.39894228040143267794 * exp_((R)-0.5 * x * x);
    return (R)0.5 * ((R)1 + erf_(x * (R)0.70710678118654752440)) + x * density;
}

// In f32, without branches: F(-|x|), which keeps its relative precision where it is small, and the density F'(x).
#ifdef NARROW_RESULTS
// For results of 16 bits: relative to exp(-x^2 / 2), F(-|x|) is a polynomial of 1 / (1 + c |x|), within 5e-6 of itself up to 12 (a fit
// by least squares, reweighted until the errors are even). The exponential has the factor BELL, with which it becomes subnormal
// only if the result does.
constexpr float BELL = 16777216.0f;
DEVICE float normal_bell(float x) { return exp2_approx(fmaf(-0.721347520444481704f * x, x, 24.0f)); }
DEVICE float normal_tail(float x) {
    float t = reciprocal_approx(fmaf(0.304055915f, fabsf(x), 1.0f));
    float y = fmaf(t, -0.0771867467f / BELL, 0.204989751f / BELL);
    y = fmaf(t, y, -0.00705197147f / BELL);
    y = fmaf(t, y, 0.141568531f / BELL);
    y = fmaf(t, y, 0.11603281f / BELL);
    return t * fmaf(t, y, 0.121649643f / BELL) * normal_bell(x);
}
DEVICE float normal_density(float x) { return 0.39894228040143267794f / BELL * normal_bell(x); }
#else
// -log2 F(-|x|) = 1 + |x| r(|x|), with a polynomial r, fitted likewise up to 6: F is within 2e-8 of itself near 0 and within 5e-6
// up to 6. Beyond, where F is less than the last bit of 1, it still falls to 0.
DEVICE float normal_tail(float x) {
    float a = fabsf(x);
    float r = fmaf(a, 2.09957406e-08f, -6.58818839e-07f);
    r = fmaf(a, r, 8.83853342e-06f);
    r = fmaf(a, r, -6.42062618e-05f);
    r = fmaf(a, r, 2.38328788e-04f);
    r = fmaf(a, r, 8.29841598e-05f);
    r = fmaf(a, r, -7.04323619e-03f);
    r = fmaf(a, r, 5.25014016e-02f);
    r = fmaf(a, r, 4.59203402e-01f);
    r = fmaf(a, r, 1.15110584f);
    return exp2_approx(fmaf(-a, r, -1.0f));
}
DEVICE float normal_density(float x) { return 0.39894228040143267794f * exp2_approx(-0.721347520444481704f * x * x); }
#endif
DEVICE float normal_distribution(float x) {
    float tail = normal_tail(x);
    return x >= 0.0f ? sum_of(1.0f, -tail) : tail;
}
DEVICE float gelu_(float x) { return x * normal_distribution(x); }
DEVICE float gelu_derivative(float x) { return fmaf(x, normal_density(x), normal_distribution(x)); }
// 2 sqrt(2/pi) (x + 0.044715 x^3)
template <typename R> DEVICE R gelu_logit(R x) {
    return x * ((R)1.59576912160573071176 + (R)0.07135481627260025 * (x * x));
}
// x/2 (1 + tanh(u)) equals x sigmoid(2u), which stays accurate where tanh is near -1.
template <typename R> DEVICE R gelu_tanh_(R x) { return x * logistic(gelu_logit(x)); }
template <typename R> DEVICE R silu_(R x) { return x * logistic(x); }
#undef NARROW_RESULTS

