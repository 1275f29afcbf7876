// ln(1 + e^x), written so that the exponential can't overflow.
DEVICE COMPUTE apply(const COMPUTE* x, const double*) {
    COMPUTE v = x[0];
    return (v > (COMPUTE)0 ? v : (COMPUTE)0) + log1p_(exp_(-abs_(v)));
}
