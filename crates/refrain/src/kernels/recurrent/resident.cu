// The weight stays in registers. A block computes one sequence; PARTS neighbouring threads share a hidden feature, so that a
// time step has one barrier. The thread of part p has columns 4 (p + PARTS c) to 4 (p + PARTS c) + 3 of the feature's rows, for
// each c. More constants: PARTS, THREADS.

#define BOUNDS __launch_bounds__(THREADS)
#define CHUNKS ((HIDDEN + 4 * PARTS - 1) / (4 * PARTS))
// Time steps whose operands are on their way.
#define AHEAD 3

// The sum over the parts; each of them gets it.
DEVICE C over_parts(C x) { return warp_reduce<PARTS>(x, Add()); }

DEVICE C dot(const Four (&w)[CHUNKS], const Four* x, int part) {
    C even = (C)0, odd = (C)0;
    #pragma unroll
    for (int c = 0; c < CHUNKS; c++) {
        const Four v = x[c * PARTS + part];
        even += w[c].at[0] * v.at[0];
        odd += w[c].at[1] * v.at[1];
        even += w[c].at[2] * v.at[2];
        odd += w[c].at[3] * v.at[3];
    }
    return even + odd;
}
