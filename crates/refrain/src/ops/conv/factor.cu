// A number as it is multiplied.
DEVICE IN factor(COMPUTE x) {
#if FORM == TF32
    return __uint_as_float(round_tf32(x));
#else
    return from<IN>(x);
#endif
}
