// FORM: CHOICE, x[1] where x[0] is other than 0, else x[2]; CHOSEN and REFUSED, x[1] where x[0] is (is not)
// other than 0, else 0.

enum { CHOICE, CHOSEN, REFUSED };

DEVICE COMPUTE apply(const COMPUTE* x, const double*) {
    bool condition = x[0] != (COMPUTE)0;
    if (FORM == CHOICE) return condition ? x[1] : x[INPUTS - 1];
    return condition == (FORM == CHOSEN) ? x[1] : (COMPUTE)0;
}
