// The same value everywhere: s[0].

DEVICE COMPUTE apply(const COMPUTE*, const double* s) { return cast_to<COMPUTE>::of(s[0]); }
