// The gradient x[0] times s[0] where the mask x[1] is nonzero, otherwise 0.

DEVICE COMPUTE apply(const COMPUTE* x, const double* s) {
    return x[1] == (COMPUTE)0 ? (COMPUTE)0 : x[0] * cast_to<COMPUTE>::of(s[0]);
}
