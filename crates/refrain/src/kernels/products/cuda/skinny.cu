// Matrix products where one operand, the narrow one, has only a few rows or columns. Each number of the wide operand
// is read once. Constants, beside those of common.cu:
//   NARROW       an upper bound of the narrow operand's rows or columns
//   WIDE_IS_A    C has few columns; else few rows
//   ALONG_K      the wide operand's elements along k are adjacent in memory, and lanes sum one row of it; else a
//                warp sums 32 rows of it, one per lane, over every eighth number along k
//   LOAD         elements of the wide operand per load
//   LANES, RUN   ALONG_K: lanes that sum a row, and rows that they sum side by side; a block's rows may be of several matrices of a batch
//   NARROW_LOADS   ALONG_K: whether the narrow operand is loaded like the wide one

// The wide operand and the narrow one.
#if WIDE_IS_A
typedef A_TYPE X;
typedef B_TYPE Y;
#else
typedef B_TYPE X;
typedef A_TYPE Y;
#endif

DEVICE void operands(const Job& j, i64 batch, const X*& x, const Y*& y) {
    const A_TYPE* a;
    const B_TYPE* b;
    begin(j, batch, a, b);
#if WIDE_IS_A
    x = a, y = b;
#else
    x = b, y = a;
#endif
}

DEVICE int wide_of(const Job& j) { return (int)(WIDE_IS_A ? j.m : j.n); }
DEVICE int narrow_of(const Job& j) { return (int)(WIDE_IS_A ? j.n : j.m); }
DEVICE i64 x_step(const Job& j) { return WIDE_IS_A ? j.a_row : j.b_col; }
DEVICE i64 x_k(const Job& j) { return WIDE_IS_A ? j.a_col : j.b_row; }
DEVICE i64 y_step(const Job& j) { return WIDE_IS_A ? j.b_col : j.a_row; }
DEVICE i64 y_k(const Job& j) { return WIDE_IS_A ? j.b_row : j.a_col; }

DEVICE void finish_number(const Job& j, const Place& p, int i, int s, COMPUTE v) {
    finish_one(j, p, WIDE_IS_A ? i : s, WIDE_IS_A ? s : i, v);
}

#if ALONG_K

// LOAD factors of a line from k on, of which those from `last` on are 0.
template <bool VECTOR, typename T> DEVICE void factors(COMPUTE* v, const T* line, i64 step, int k, int last) {
    if (VECTOR && k + LOAD <= last) {
        const vec<T, LOAD> w = load<LOAD>(line + k);
        #pragma unroll
        for (int e = 0; e < LOAD; e++) v[e] = factor(w.at[e]);
    } else {
        #pragma unroll
        for (int e = 0; e < LOAD; e++) v[e] = k + e < last ? factor(line[(k + e) * step]) : (COMPUTE)0;
    }
}

KERNEL_THAT_WAITS(gemm_skinny, Job, j, __launch_bounds__(256)) {
    constexpr int GROUPS = 256 / LANES;
    const int wide = wide_of(j), narrow = narrow_of(j);
    const u32 tiles = (u32)j.tiles_m, tile = blockIdx.x % tiles, lane = threadIdx.x % LANES, group = threadIdx.x / LANES;
    const i64 rows = wide * j.batches, row = (i64)tile * (GROUPS * RUN) + group;
    Place p = {};
    p.split = PARTIAL ? (int)(blockIdx.x / tiles) : 0;
    const int first = (int)(p.split * j.depth), last = (int)min(j.k, p.split * j.depth + j.depth);
    const X* x[RUN];
    const Y* y[RUN];
    #pragma unroll
    for (int r = 0; r < RUN; r++) {
        const i64 at = min(row + r * GROUPS, rows - 1), batch = j.batches > 1 ? at / wide : 0;
        operands(j, batch, x[r], y[r]);
        x[r] += (at - batch * wide) * x_step(j);
    }
    take_turn(j, p);
    COMPUTE acc[RUN][NARROW] = {};
    #pragma unroll 2
    for (int k = first + (int)lane * LOAD; k < last; k += LANES * LOAD) {
        COMPUTE v[RUN][LOAD];
        #pragma unroll
        for (int r = 0; r < RUN; r++) factors<(LOAD > 1)>(v[r], x[r], x_k(j), k, last);
        #pragma unroll
        for (int s = 0; s < NARROW; s++) {
            if (s >= narrow) continue;
            #pragma unroll
            for (int r = 0; r < RUN; r++) {
                COMPUTE w[LOAD];
                factors<NARROW_LOADS>(w, y[r] + s * y_step(j), y_k(j), k, last);
                #pragma unroll
                for (int e = 0; e < LOAD; e++) acc[r][s] += v[r][e] * w[e];
            }
        }
    }
    #pragma unroll
    for (int r = 0; r < RUN; r++) {
        const i64 at = row + r * GROUPS;
        p.batch = j.batches > 1 ? at / wide : 0;
        const int i = (int)(at - p.batch * wide);
        #pragma unroll
        for (int s = 0; s < NARROW; s++) {
            const COMPUTE v = warp_reduce<LANES>(acc[r][s], Add());
            if (lane == s % LANES && s < narrow && at < rows) finish_number(j, p, i, s, v);
        }
    }
}

#else

KERNEL_THAT_WAITS(gemm_skinny, Job, j, __launch_bounds__(256)) {
    Place p = place(j);
    const X* x;
    const Y* y;
    operands(j, p.batch, x, y);
    const int wide = wide_of(j), narrow = narrow_of(j);
    int first = (int)(p.split * j.depth), last = (int)min(j.k, p.split * j.depth + j.depth);
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    take_turn(j, p);
    COMPUTE acc[NARROW] = {};
    __shared__ COMPUTE partial[8][NARROW][32];
    int i = p.tile_m * 32 + lane;
    if (i < wide) {
        x += i * x_step(j);
        #pragma unroll 4
        for (int k = first + warp; k < last; k += 8) {
            COMPUTE v = factor(x[k * x_k(j)]);
            #pragma unroll
            for (int s = 0; s < NARROW; s++) {
                if (s < narrow) acc[s] += v * factor(y[s * y_step(j) + k * y_k(j)]);
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
        if (i < wide) finish_number(j, p, i, s, v);
    }
}

#endif
