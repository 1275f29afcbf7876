// Functions of one number and their derivatives. FUNCTION is one of those below; BACKWARD: x[0] is the
// operand or the result, whichever the derivative is computed from, and x[1] the gradient.

enum { NEG, ABS, SIGN, EXP, LOG, SQRT, RSQRT, RECIPROCAL, SQUARE, SIN, COS, TANH, SIGMOID, RELU, GELU, GELU_TANH,
       SILU, ERF, FLOOR, CEIL, ROUND, CLAMP };

// The logistic function. A half's few digits need no more than the hardware's exponential and reciprocal, with which
// memory sets the pace. The exponential carries a factor of 2^24, so that it is no denormal before the result is.
template <typename R> DEVICE R logistic(R x) { return sigmoid_(x); }
#if OUT_SIZE == 2
DEVICE float logistic(float x) {
    float e, inverse;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(24.0f - 1.4426950408889634f * fabsf(x)));
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(16777216.0f + e));
    return (x >= 0.0f ? 16777216.0f : e) * inverse;
}
#endif

template <typename R> DEVICE R sign_(R x) { return x > (R)0 ? (R)1 : x < (R)0 ? (R)-1 : (R)0; }
template <typename R> DEVICE R clamp_(R x, R low, R high) { return x < low ? low : x > high ? high : x; }

template <typename R> DEVICE R gelu_derivative(R x) {
    R density = (R)0.39894228040143267794 * exp_((R)-0.5 * x * x);
    return (R)0.5 * ((R)1 + erf_(x * (R)0.70710678118654752440)) + x * density;
}
template <typename R> DEVICE R gelu_tanh_derivative(R x) {
    R s = logistic(gelu_logit(x));
    R slope = (R)1.59576912160573071176 + (R)0.21406444881780076 * (x * x);
    R bell = s * ((R)1 - s);
    // Far out the bell is 0, whatever x^2 is by then.
    return s + (bell == (R)0 ? (R)0 : x * bell * slope);
}
template <typename R> DEVICE R silu_derivative(R x) {
    R s = logistic(x);
    return s * ((R)1 + x * ((R)1 - s));
}

template <typename R> DEVICE R float_function(R x, const double* s) {
    switch (FUNCTION) {
    case NEG: return -x;
    case ABS: return abs_(x);
    case SIGN: return sign_(x);
    case EXP: return exp_(x);
    case LOG: return log_(x);
    case SQRT: return sqrt_(x);
    case RSQRT: return (R)1 / sqrt_(x);
    case RECIPROCAL: return (R)1 / x;
    case SQUARE: return x * x;
    case SIN: return sin_(x);
    case COS: return cos_(x);
    case TANH: return tanh_(x);
    case SIGMOID: return logistic(x);
    case RELU: return relu_(x);
    case GELU: return gelu_(x);
    case GELU_TANH: return x * logistic(gelu_logit(x));
    case SILU: return x * logistic(x);
    case ERF: return erf_(x);
    case FLOOR: return floor_(x);
    case CEIL: return ceil_(x);
    case ROUND: return round_(x);
    default: return clamp_(x, (R)s[0], (R)s[1]);
    }
}

// In orders in which each product lies between the gradient and the result: none leaves the range of its type where both
// are in it.
template <typename R> DEVICE R float_derivative(R v, R d, const double* s) {
    switch (FUNCTION) {
    // Of the operand:
    case ABS: return v > (R)0 ? d : v < (R)0 ? -d : (R)0 * d;
    case LOG: return d / v;
    case SQUARE: return (R)2 * (v * d);
    case SIN: return cos_(v) * d;
    case COS: return -sin_(v) * d;
    case GELU: return gelu_derivative(v) * d;
    case GELU_TANH: return gelu_tanh_derivative(v) * d;
    case SILU: return silu_derivative(v) * d;
    case ERF: return (R)1.12837916709551257390 * exp_(-(v * v)) * d;
    case CLAMP: return v > (R)s[0] && v < (R)s[1] ? d : (R)0;
    // Of the result:
    case EXP: return v * d;
    case SQRT: return d / (v + v);
    case RSQRT: return (R)-0.5 * v * d * v * v;
    case RECIPROCAL: return -(v * d) * v;
    case TANH: return ((R)1 - v * v) * d;
    case SIGMOID: return v * ((R)1 - v) * d;
    case RELU: return v <= (R)0 ? (R)0 : d;
    case NEG: return -d;
    default: return (R)0;
    }
}

DEVICE i64 int_function(i64 x, const double* s) {
    switch (FUNCTION) {
    case NEG: return (i64)(0 - (u64)x);
    case ABS: return abs_(x);
    case SIGN: return sign_(x);
    case SQUARE: return (i64)((u64)x * (u64)x);
    case RELU: return relu_(x);
    case CLAMP: return clamp_(x, cast_to<i64>::of(ceil(s[0])), cast_to<i64>::of(floor(s[1])));
    default: return x;
    }
}

DEVICE float apply_to(const float* x, const double* s) {
    return BACKWARD ? float_derivative(x[0], x[INPUTS - 1], s) : float_function(x[0], s);
}
DEVICE double apply_to(const double* x, const double* s) {
    return BACKWARD ? float_derivative(x[0], x[INPUTS - 1], s) : float_function(x[0], s);
}
DEVICE i64 apply_to(const i64* x, const double* s) { return int_function(x[0], s); }

DEVICE COMPUTE apply(const COMPUTE* x, const double* s) { return apply_to(x, s); }
