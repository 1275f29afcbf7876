// Gradients of pointwise losses. Operands: prediction, target and dy. LOSS is one of those below; s[0] is the scale,
// s[1] is delta. BY is the operand whose gradient it is.

enum { MSE, L1, HUBER, BCE };

DEVICE COMPUTE apply(const COMPUTE* x, const double* s) {
    COMPUTE scale = (COMPUTE)s[0], delta = (COMPUTE)s[1], e = x[0] - x[1];
    if (LOSS == MSE) return e * ((scale + scale) * x[2]);
    if (LOSS == BCE) return (BY == 0 ? sigmoid_(x[0]) - x[1] : -x[0]) * (scale * x[2]);
    if (LOSS == HUBER) return (e > delta ? delta : e < -delta ? -delta : e) * (scale * x[2]);
    COMPUTE d = scale * x[2];
    return x[0] > x[1] ? d : x[0] < x[1] ? -d : (COMPUTE)0 * d;
}
