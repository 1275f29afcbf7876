// Matrix products where one operand, the narrow one, has only a few rows or columns. Each number of the wide operand
// is read once. Constants, beside those of common.cu:
//   NARROW       an upper bound of the narrow operand's rows or columns
//   WIDE_IS_A    C has few columns; else few rows
//   ALONG_K      the wide operand's elements along k are adjacent in memory, and a warp sums one row of it; else a
//                warp sums 32 rows of it, one per lane, over every eighth number along k
//   LOAD         elements of the wide operand per load

KERNEL_THAT_WAITS(gemm_skinny, Job, j, __launch_bounds__(256)) {
    Place p = place(j);
    const A_TYPE* a;
    const B_TYPE* b;
    begin(j, p.batch, a, b);
    // The wide operand and the narrow one.
#if WIDE_IS_A
    typedef A_TYPE X;
    const X* x = a;
    const B_TYPE* y = b;
#else
    typedef B_TYPE X;
    const X* x = b;
    const A_TYPE* y = a;
#endif
    i64 x_step = WIDE_IS_A ? j.a_row : j.b_col, x_k = WIDE_IS_A ? j.a_col : j.b_row;
    i64 y_step = WIDE_IS_A ? j.b_col : j.a_row, y_k = WIDE_IS_A ? j.b_row : j.a_col;
    int wide = (int)(WIDE_IS_A ? j.m : j.n), narrow = (int)(WIDE_IS_A ? j.n : j.m);
    int first = (int)(p.split * j.depth), last = (int)min(j.k, p.split * j.depth + j.depth);
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    take_turn(j, p);
    COMPUTE acc[NARROW];
    #pragma unroll
    for (int s = 0; s < NARROW; s++) acc[s] = 0;

    if (ALONG_K) {
        int i = p.tile_m * 8 + warp;
        if (i >= wide) return;
        x += i * x_step;
        #pragma unroll 2
        for (int k = first + lane * LOAD; k < last; k += 32 * LOAD) {
            COMPUTE v[LOAD];
            if (LOAD > 1 && k + LOAD <= last) {
                vec<X, LOAD> w = load<LOAD>(x + k);
                #pragma unroll
                for (int e = 0; e < LOAD; e++) v[e] = factor(w.at[e]);
            } else {
                #pragma unroll
                for (int e = 0; e < LOAD; e++) v[e] = k + e < last ? factor(x[(k + e) * x_k]) : (COMPUTE)0;
            }
            #pragma unroll
            for (int s = 0; s < NARROW; s++) {
                if (s < narrow) {
                    #pragma unroll
                    for (int e = 0; e < LOAD; e++) {
                        if (LOAD == 1 || k + e < last) acc[s] += v[e] * factor(y[s * y_step + (k + e) * y_k]);
                    }
                }
            }
        }
        #pragma unroll
        for (int s = 0; s < NARROW; s++) {
            acc[s] = warp_sum(acc[s]);
            if (lane == s && s < narrow) finish_one(j, p, WIDE_IS_A ? i : s, WIDE_IS_A ? s : i, acc[s]);
        }
    } else {
        __shared__ COMPUTE partial[8][NARROW][32];
        int i = p.tile_m * 32 + lane;
        if (i < wide) {
            x += i * x_step;
            #pragma unroll 4
            for (int k = first + warp; k < last; k += 8) {
                COMPUTE v = factor(x[k * x_k]);
                #pragma unroll
                for (int s = 0; s < NARROW; s++) {
                    if (s < narrow) acc[s] += v * factor(y[s * y_step + k * y_k]);
                }
            }
        }
        #pragma unroll
        for (int s = 0; s < NARROW; s++) partial[warp][s][lane] = acc[s];
        __syncthreads();
        for (int s = warp; s < narrow; s += 8) {
            COMPUTE v = 0;
            #pragma unroll
            for (int w = 0; w < 8; w++) v += partial[w][s][lane];
            if (i < wide) finish_one(j, p, WIDE_IS_A ? i : s, WIDE_IS_A ? s : i, v);
        }
    }
}
