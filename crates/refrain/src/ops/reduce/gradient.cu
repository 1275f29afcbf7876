// Gradients of reductions, elementwise. FORM is one of those below.

enum {
    // Operands: x, the mean and dy; s[0] is the scale.
    VARIANCE,
    // Operands: x, the extreme and its share of the gradient.
    EXTREME,
};

DEVICE COMPUTE apply(const COMPUTE* x, const double* s) {
    if (FORM == VARIANCE) return (COMPUTE)s[0] * x[2] * (x[0] - x[1]);
    return x[0] == x[1] || (is_nan(x[0]) && is_nan(x[1])) ? x[2] : (COMPUTE)0;
}
