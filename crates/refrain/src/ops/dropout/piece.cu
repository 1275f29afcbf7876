// Dropout in a chain: x[0], with ADDS plus x[1]. It is kept if the random word is at least s[0], and then multiplied by s[1].
// Of KEPT, the result is whether it is kept. With NEVER, s[0] is 2^32.

DEVICE COMPUTE apply(const COMPUTE* x, const double* s, u32 word) {
    bool kept = !NEVER && word >= __double2uint_rz(s[0]);
    if (KEPT) return (COMPUTE)kept;
    return dropped<ADDS>(kept, x[0], x[ADDS], (COMPUTE)s[1]);
}
