// Random numbers. A block of four words gives four numbers, or two in f64. Constants: OUT; NORMAL; BITS, the bits of
// the significand.

#define EACH (OUT_SIZE == 8 ? 2 : 4)

// 2^-n
DEVICE double reciprocal_power(int n) { return __longlong_as_double((i64)(1023 - n) << 52); }
// The top 53 bits of two words. The first is the upper one.
DEVICE u64 wide(u32 upper, u32 lower) { return ((u64)upper << 32 | lower) >> 11; }

// Two normal numbers from two uniform ones: u in (0, 1] and v in [0, 1) (Box and Muller, 1958).
DEVICE void box_muller(double u, double v, double* out) {
    double radius = sqrt(-2.0 * log(u)), s, c;
    sincos(__dmul_rn(6.283185307179586, v), &s, &c);
    out[0] = radius * c;
    out[1] = radius * s;
}

KERNEL(sample, SampleArgs, p) {
    OUT* y = p.y;
    const i64 n = p.n, skip = p.skip;
    const u64 seed = (u64)p.state[0], first = (u64)p.state[1] + p.offset;
    const bool aligned = skip == 0 && (u64)y % (EACH * OUT_SIZE) == 0;
    const i64 blocks = (skip + n + EACH - 1) / EACH;
    for (i64 b = (i64)blockIdx.x * blockDim.x + threadIdx.x; b < blocks; b += (i64)gridDim.x * blockDim.x) {
        // The first element of this block; before the start, if numbers are skipped.
        const i64 at = EACH * b - skip;
        Words w = philox(seed, first + (u64)b);
#if NORMAL || OUT_SIZE == 8
        double values[4];
#else
        float values[4];
#endif
#if NORMAL && OUT_SIZE == 8
        box_muller((double)(wide(w.at[0], w.at[1]) + 1) * reciprocal_power(53),
                   (double)wide(w.at[2], w.at[3]) * reciprocal_power(53), values);
#elif NORMAL
        box_muller(((double)w.at[0] + 1.0) * reciprocal_power(32), (double)w.at[1] * reciprocal_power(32), values);
        box_muller(((double)w.at[2] + 1.0) * reciprocal_power(32), (double)w.at[3] * reciprocal_power(32), values + 2);
#elif OUT_SIZE == 8
        values[0] = (double)wide(w.at[0], w.at[1]) * reciprocal_power(53);
        values[1] = (double)wide(w.at[2], w.at[3]) * reciprocal_power(53);
#else
        // The number has no more bits than f32, so this is exact.
        #pragma unroll
        for (int i = 0; i < 4; i++) values[i] = (float)(w.at[i] >> (32 - BITS)) * (float)reciprocal_power(BITS);
#endif
        vec<OUT, EACH> v;
        #pragma unroll
        for (int i = 0; i < EACH; i++) v.at[i] = from<OUT>(values[i]);
        if (aligned && at + EACH <= n) {
            store<EACH>(y + at, v);
        } else {
            #pragma unroll
            for (int i = 0; i < EACH; i++) if (at + i >= 0 && at + i < n) y[at + i] = v.at[i];
        }
    }
}
