// FORM: CHOICE gives x[1] if x[0] is nonzero, otherwise x[2]. CHOSEN gives x[1] if x[0] is nonzero, otherwise 0.
// REFUSED gives x[1] if x[0] is 0, otherwise 0. FILLED gives s[0] if x[0] is nonzero, otherwise x[1].

enum { CHOICE, CHOSEN, REFUSED, FILLED };

DEVICE COMPUTE apply(const COMPUTE* x, const double* s) {
    bool condition = x[0] != (COMPUTE)0;
    if (FORM == CHOICE) return condition ? x[1] : x[INPUTS - 1];
    if (FORM == FILLED) return condition ? (COMPUTE)s[0] : x[1];
    return condition == (FORM == CHOSEN) ? x[1] : (COMPUTE)0;
}
