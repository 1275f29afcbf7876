// The gradient of ln(sum(e^x)). Operands: x, the result and its gradient.

DEVICE COMPUTE apply(const COMPUTE* x, const double*) {
    return x[1] == limits<COMPUTE>::lowest() ? (COMPUTE)0 : exp_(x[0] - x[1]) * x[2];
}
