// Copies and casts. Constant: TRUTH, whether the result is x != 0.

DEVICE COMPUTE apply(const COMPUTE* x, const double*) { return TRUTH ? (COMPUTE)(x[0] != (COMPUTE)0) : x[0]; }
