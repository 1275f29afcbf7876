// Unary functions and their derivatives. FUNCTION: an expression of x and, of a derivative, of the gradient d; a
// derivative that is computed from the result has that as y. The scalars are s, and R is the arithmetic.

#define NAMED(NAME) \
    DEVICE float NAME##_(float x) { return NAME##f(x); } \
    DEVICE double NAME##_(double x) { return NAME(x); }
NAMED(exp2) NAMED(log2) NAMED(log10) NAMED(trunc)
NAMED(tan) NAMED(asin) NAMED(acos) NAMED(atan)
NAMED(sinh) NAMED(cosh) NAMED(asinh) NAMED(acosh) NAMED(atanh)
NAMED(erfc) NAMED(erfinv)
#undef NAMED

template <typename R> DEVICE R clamp_(R x, R low, R high) { return x < low ? low : x > high ? high : x; }
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

template <typename R> DEVICE R sqrt_1_minus_square(R x) { return sqrt_(((R)1 - x) * ((R)1 + x)); }
// tanh(softplus(x)) is n / (n + 2) for e = e^x and n = e (e + 2). From 20 on, it rounds to 1.
template <typename R> DEVICE R mish_power(R x) { return exp_(x > (R)20 ? (R)20 : x); }
template <typename R> DEVICE R mish_(R x) {
    R e = mish_power(x), n = e * (e + (R)2);
    return x * (n / (n + (R)2));
}
template <typename R> DEVICE R mish_derivative(R x) {
    R e = mish_power(x), n = e * (e + (R)2), below = n + (R)2;
    return n / below + (x > (R)20 ? (R)20 : x) * ((R)4 * e * ((R)1 + e) / (below * below));
}

// The logarithm of the gamma function and its derivatives, in f64: Stirling's series from 10 on, recurrences below, and reflection
// from negative arguments.

template <int N> DEVICE double series(double x, const double (&c)[N]) {
    double sum = 0.0;
#pragma unroll
    for (int i = N - 1; i >= 0; i--) sum = sum * x + c[i];
    return sum;
}

// pi x without the whole turns of it.
DEVICE double angle(double x) { return 3.14159265358979323846 * (x - 2.0 * round_(0.5 * x)); }

DEVICE double lgamma_(double x) {
    const double c[7] = {1.0 / 12.0,   -1.0 / 360.0,      1.0 / 1260.0, -1.0 / 1680.0,
                         1.0 / 1188.0, -691.0 / 360360.0, 1.0 / 156.0};
    bool mirrored = x <= 0.0;
    if (mirrored && x == floor_(x) || x == (double)INFINITY_F) return (double)INFINITY_F;
    double t = mirrored ? 1.0 - x : x, product = 1.0;
    while (t < 10.0) {
        product *= t;
        t += 1.0;
    }
    double y = (t - 0.5) * log_(t) - t + 0.91893853320467274178 + series(1.0 / (t * t), c) / t - log_(product);
    return mirrored ? log_(3.14159265358979323846 / abs_(sin_(angle(x)))) - y : y;
}
DEVICE double digamma_(double x) {
    const double c[7] = {1.0 / 12.0,  -1.0 / 120.0,     1.0 / 252.0, -1.0 / 240.0,
                         1.0 / 132.0, -691.0 / 32760.0, 1.0 / 12.0};
    if (x == 0.0) return -1.0 / x;
    bool mirrored = x < 0.0;
    if (mirrored && x == floor_(x)) return (double)NAN_F;
    double t = mirrored ? 1.0 - x : x, sum = 0.0;
    while (t < 10.0) {
        sum += 1.0 / t;
        t += 1.0;
    }
    double square = 1.0 / (t * t);
    double y = log_(t) - 0.5 / t - series(square, c) * square - sum;
    return mirrored ? y - 3.14159265358979323846 * cos_(angle(x)) / sin_(angle(x)) : y;
}
DEVICE double trigamma_(double x) {
    const double c[7] = {1.0 / 6.0,  -1.0 / 30.0,     1.0 / 42.0, -1.0 / 30.0,
                         5.0 / 66.0, -691.0 / 2730.0, 7.0 / 6.0};
    bool mirrored = x <= 0.0;
    if (mirrored && x == floor_(x)) return (double)INFINITY_F;
    double t = mirrored ? 1.0 - x : x, sum = 0.0;
    while (t < 10.0) {
        sum += 1.0 / (t * t);
        t += 1.0;
    }
    double square = 1.0 / (t * t);
    double y = (1.0 + 0.5 / t + series(square, c) * square) / t + sum;
    double ratio = 3.14159265358979323846 / sin_(angle(x));
    return mirrored ? ratio * ratio - y : y;
}

template <typename R> DEVICE R function(R x, R y, R d, const double* s) { return FUNCTION; }

DEVICE COMPUTE apply(const COMPUTE* v, const double* s) { return function(v[0], v[0], v[INPUTS - 1], s); }
