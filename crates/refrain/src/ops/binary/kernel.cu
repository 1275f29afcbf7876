// Binary functions of two tensors, or of a tensor and a scalar, and their derivatives. FUNCTION: an expression of a and b and, of a gradient, of the result's
// gradient d; N is the arithmetic. FORM: BOTH operands (x[0], x[1], and x[2] is d), SCALAR_RIGHT (x[0], s[0]), SCALAR_LEFT
// (s[0], x[0]).

enum { BOTH, SCALAR_RIGHT, SCALAR_LEFT };

DEVICE i64 plus(i64 a, i64 b) { return (i64)((u64)a + (u64)b); }
DEVICE i64 minus(i64 a, i64 b) { return (i64)((u64)a - (u64)b); }
DEVICE i64 times(i64 a, i64 b) { return (i64)((u64)a * (u64)b); }
// Rounds towards zero, gives 0 if the divisor is 0, and wraps around.
DEVICE i64 over(i64 a, i64 b) { return b == 0 ? 0 : b == -1 ? minus(0, a) : a / b; }
DEVICE i64 power(i64 base, i64 e) {
    if (e == 0 || base == 1) return 1;
    if (base == -1) return 1 - 2 * (e & 1);
    if (e < 0) return 0;
    i64 result = 1;
    for (; e > 0; e >>= 1) {
        if (e & 1) result = times(result, base);
        base = times(base, base);
    }
    return result;
}
DEVICE i64 remainder_(i64 a, i64 b) {
    i64 r = b == 0 || b == -1 ? 0 : a % b;
    return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}
template <typename R> DEVICE R plus(R a, R b) { return a + b; }
template <typename R> DEVICE R minus(R a, R b) { return a - b; }
template <typename R> DEVICE R times(R a, R b) { return a * b; }
template <typename R> DEVICE R over(R a, R b) { return a / b; }
template <typename R> DEVICE R power(R a, R b) { return pow_(a, b); }

DEVICE float fmod_(float a, float b) { return fmodf(a, b); }
DEVICE double fmod_(double a, double b) { return fmod(a, b); }
template <typename R> DEVICE R remainder_(R a, R b) {
    R r = fmod_(a, b);
    return r != (R)0 && (r < (R)0) != (b < (R)0) ? r + b : r;
}
DEVICE float atan2_(float a, float b) { return atan2f(a, b); }
DEVICE double atan2_(double a, double b) { return atan2(a, b); }
DEVICE float hypot_(float a, float b) { return hypotf(a, b); }
DEVICE double hypot_(double a, double b) { return hypot(a, b); }
// Also of two equal infinities.
template <typename R> DEVICE R logaddexp(R a, R b) {
    return (a > b ? a : b) + log1p_(exp_(a == b ? (R)0 : -abs_(a - b)));
}

// floor(a / b), of the exact quotient.
template <typename R> DEVICE R floor_of_quotient(R a, R b) {
    R rest = remainder_(a, b);
    if (is_nan(rest)) return rest;
    if (abs_(b) == (R)INFINITY_F) return rest == a ? (R)0 : (R)-1;
    return round_(a / b - rest / b);
}

// d times other / (a^2 + b^2), where other is one of both numbers; 0 if both are 0 or one is infinite. The larger one is taken out
// of the squares, and divides last, because it may be small.
template <typename R> DEVICE R atan2_slope(R a, R b, R other, R d) {
    R size = abs_(a) > abs_(b) ? abs_(a) : abs_(b);
    bool is_number = !is_nan(a) && !is_nan(b);
    if (is_number && (size == (R)0 || size == (R)INFINITY_F)) return (R)0 * d;
    R p = a / size, q = b / size;
    return d * (other / size / (p * p + q * q)) / size;
}
// d a / hypot(a, b); 0 if both are 0.
template <typename R> DEVICE R hypot_slope(R a, R b, R d) {
    R length = hypot_(a, b);
    return d * (a / (length == (R)0 ? (R)1 : length));
}
// d e^a / (e^a + e^b); half of d also for equal infinities.
template <typename R> DEVICE R logaddexp_slope(R a, R b, R d) { return sigmoid_(a == b ? (R)0 : a - b) * d; }

// The gradient goes to the chosen operand. If both are equal, each gets half. If one is NaN, both get all of it.
template <typename R> DEVICE R share(bool beaten, bool equal, R d) {
    return equal ? (R)0.5 * d : beaten ? (R)0 : d;
}

// mantissa 2^exponent: a product or quotient of a few such numbers overflows or underflows only if its result does.
struct Scaled {
    double mantissa;
    int exponent;
    DEVICE Scaled operator*(Scaled b) const { return {mantissa * b.mantissa, exponent + b.exponent}; }
    DEVICE Scaled operator/(Scaled b) const { return {mantissa / b.mantissa, exponent - b.exponent}; }
};
DEVICE Scaled scaled(double x) {
    Scaled s;
    s.mantissa = frexp(x, &s.exponent);
    return s;
}
template <typename R> DEVICE R rounded(Scaled s) { return (R)ldexp(s.mantissa, s.exponent); }
// |a|^b, computed as the square of |a|^(b/2).
DEVICE Scaled half_power(double a, double b) {
    Scaled root = scaled(pow(fabs(a), b / 2.0));
    return root * root;
}

// Neither 0 nor subnormal nor infinite nor NaN.
DEVICE bool is_normal(float x) { return fabsf(x) >= 1.17549435e-38f && fabsf(x) <= 3.40282347e+38f; }
DEVICE bool is_normal(double x) { return fabs(x) >= 2.2250738585072014e-308 && fabs(x) <= 1.7976931348623157e+308; }

// The derivatives below use plain arithmetic if no intermediate leaves the range of its type.

// -d a / b^2. Products with zero are exact.
template <typename R> DEVICE R by_denominator(R a, R b, R d) {
    R over = d * a, under = b * b;
    bool exact = a == (R)0 || d == (R)0;
    if ((is_normal(over) || exact) && is_normal(under)) return -over / under;
    return -rounded<R>(scaled(d) * scaled(a) / (scaled(b) * scaled(b)));
}
// d b a^(b - 1), and 0 if b is 0. The power of a negative number may be NaN; that of 0 is exact.
template <typename R> DEVICE R by_base(R a, R b, R d) {
    if (b == (R)0) return (R)0 * d;
    R slope = d * b, power = pow_(a, b - (R)1);
    bool exact = a == (R)0 || is_nan(power);
    if ((is_normal(slope) || d == (R)0) && (is_normal(power) || exact)) return slope * power;
    return rounded<R>(scaled(d) * scaled(b) * half_power(a, b - (R)1) * scaled(copysign(1.0, (double)power)));
}
// d a^b ln(a), and 0 if a is 0. The logarithm of a negative number is NaN.
template <typename R> DEVICE R by_exponent(R a, R b, R d) {
    if (a == (R)0) return (R)0 * d;
    R power = pow_(a, b), log = log_(a), part = d * power;
    if (is_nan(log) || (is_normal(power) && (is_normal(part) || d == (R)0))) return part * log;
    return rounded<R>(scaled(d) * half_power(a, b) * scaled(log));
}

template <typename N> DEVICE N function(N a, N b, N d) { return FUNCTION; }

DEVICE COMPUTE apply(const COMPUTE* x, const double* s) {
    switch (FORM) {
    case SCALAR_RIGHT: return function(x[0], cast_to<COMPUTE>::of(s[0]), x[0]);
    case SCALAR_LEFT: return function(cast_to<COMPUTE>::of(s[0]), x[0], x[0]);
    default: return function(x[0], x[INPUTS > 1], x[INPUTS > 2 ? 2 : 0]);
    }
}
