// Unary functions and their derivatives. FUNCTION: an expression of x and, of a derivative, of the gradient d; a
// derivative that is computed from the result has that as y. The scalars are s, and R is the arithmetic.

// The logistic function. For 16-bit numbers, the hardware's approximate exponential and reciprocal are exact enough;
// with them, memory is the bottleneck. The exponential has a factor of 2^24, so that it becomes subnormal only if the
// result does.
template <typename R> DEVICE R logistic(R x) { return sigmoid_(x); }
#if OUT_SIZE == 2
DEVICE float logistic(float x) {
    float e, inverse;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(24.0f - 1.4426950408889634f * fabsf(x)));
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(16777216.0f + e));
    return (x >= 0.0f ? 16777216.0f : e) * inverse;
}
#endif

template <typename R> DEVICE R clamp_(R x, R low, R high) { return x < low ? low : x > high ? high : x; }
template <typename R> DEVICE R gelu_derivative(R x) {
    R density = (R)0.39894228040143267794 * exp_((R)-0.5 * x * x);
    return (R)0.5 * ((R)1 + erf_(x * (R)0.70710678118654752440)) + x * density;
}
template <typename R> DEVICE R gelu_tanh_derivative(R x) {
    R s = logistic(gelu_logit(x));
    R slope = (R)1.59576912160573071176 + (R)0.21406444881780076 * (x * x);
    R bell = s * ((R)1 - s);
    // For large |x| the density is 0, whatever x^2 is by then.
    return s + (bell == (R)0 ? (R)0 : x * bell * slope);
}
template <typename R> DEVICE R silu_derivative(R x) {
    R s = logistic(x);
    return s * ((R)1 + x * ((R)1 - s));
}

template <typename R> DEVICE R function(R x, R y, R d, const double* s) { return FUNCTION; }

DEVICE COMPUTE apply(const COMPUTE* v, const double* s) { return function(v[0], v[0], v[INPUTS - 1], s); }
