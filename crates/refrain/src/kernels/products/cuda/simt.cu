// Matrix products on the ordinary arithmetic units (without tensor cores), exact in f32 and f64, for operands with
// any strides. A block computes a tile of C; a thread computes ROWS x COLS numbers of it in registers. Constants,
// beside those of common.cu:
//   TILE_M, TILE_N, TILE_K, ROWS, COLS
//   A_ALONG_K, B_ALONG_K   adjacent threads load adjacent elements along k; else along m or n
//   A_LOAD, B_LOAD   elements per load; if more than one, they are adjacent in memory
//   SUMS         also sums A's rows

constexpr int THREADS_N = TILE_N / COLS, THREADS_M = TILE_M / ROWS, BLOCK_THREADS = THREADS_M * THREADS_N;
// The number of elements in 16 bytes.
constexpr int LANES = 16 / (int)sizeof(COMPUTE);
constexpr int A_PITCH = TILE_M + LANES, B_PITCH = TILE_N + LANES;
constexpr int A_COUNT = TILE_M * TILE_K / BLOCK_THREADS, B_COUNT = TILE_N * TILE_K / BLOCK_THREADS;

// The part of an operand's tile that a thread loads early and stores into shared memory later. `outer` is the
// dimension that is not k.
template <typename T, int OUTER, bool ALONG_K, int LOAD, int COUNT, int PITCH> struct Share {
    T held[COUNT];

    static DEVICE void locate(int s, int& outer, int& k) {
        int i = s * BLOCK_THREADS + threadIdx.x;
        if (ALONG_K) {
            outer = i / (TILE_K / LOAD);
            k = i % (TILE_K / LOAD) * LOAD;
        } else {
            k = i / (OUTER / LOAD);
            outer = i % (OUTER / LOAD) * LOAD;
        }
    }

    // `outers` and `ks` are the numbers of elements that exist.
    DEVICE void take(const T* x, i64 outer_step, i64 k_step, int outers, int ks) {
        #pragma unroll
        for (int s = 0; s < COUNT / LOAD; s++) {
            int outer, k;
            locate(s, outer, k);
            const T* at = x + outer * outer_step + k * k_step;
            int there = ALONG_K ? (outer < outers ? ks - k : 0) : (k < ks ? outers - outer : 0);
            if (LOAD > 1 && there >= LOAD) {
                vec<T, LOAD> v = load<LOAD>(at);
                #pragma unroll
                for (int i = 0; i < LOAD; i++) held[s * LOAD + i] = v.at[i];
            } else {
                #pragma unroll
                for (int i = 0; i < LOAD; i++) {
                    held[s * LOAD + i] = i < there ? at[ALONG_K ? i * k_step : i * outer_step] : from<T>((COMPUTE)0);
                }
            }
        }
    }

    DEVICE void put_into(COMPUTE* tile) const {
        #pragma unroll
        for (int s = 0; s < COUNT / LOAD; s++) {
            int outer, k;
            locate(s, outer, k);
            #pragma unroll
            for (int i = 0; i < LOAD; i++) {
                int at = ALONG_K ? (k + i) * PITCH + outer : k * PITCH + outer + i;
                tile[at] = factor(held[s * LOAD + i]);
            }
        }
    }
};

// The numbers of a row of a tile that a thread multiplies: runs of LANES numbers, at intervals of `STEP` threads.
template <int COUNT, int STEP> DEVICE void pick(COMPUTE* x, const COMPUTE* row, int thread) {
    #pragma unroll
    for (int r = 0; r < COUNT / LANES; r++) {
        vec<COMPUTE, LANES> v = load<LANES>(row + (r * STEP + thread) * LANES);
        #pragma unroll
        for (int i = 0; i < LANES; i++) x[r * LANES + i] = v.at[i];
    }
}

KERNEL_THAT_WAITS(gemm_simt, Job, j, __launch_bounds__(BLOCK_THREADS)) {
    __shared__ __align__(16) COMPUTE a_tiles[2][TILE_K * A_PITCH];
    __shared__ __align__(16) COMPUTE b_tiles[2][TILE_K * B_PITCH];
    Place p = place(j);
    const A_TYPE* a;
    const B_TYPE* b;
    begin(j, p.batch, a, b);
    int from = (int)(p.split * j.depth), to = (int)min(j.k, p.split * j.depth + j.depth);
    int row0 = p.tile_m * TILE_M, col0 = p.tile_n * TILE_N;
    int rows = (int)j.m - row0, cols = (int)j.n - col0;
    int steps = (to - from + TILE_K - 1) / TILE_K;
    a += row0 * j.a_row + from * j.a_col;
    b += col0 * j.b_col + from * j.b_row;
    take_turn(j, p);

    Share<A_TYPE, TILE_M, A_ALONG_K, A_LOAD, A_COUNT, A_PITCH> a_share;
    Share<B_TYPE, TILE_N, B_ALONG_K, B_LOAD, B_COUNT, B_PITCH> b_share;
    auto take = [&](int step) {
        i64 k = (i64)step * TILE_K;
        a_share.take(a + k * j.a_col, j.a_row, j.a_col, rows, to - from - (int)k);
        b_share.take(b + k * j.b_row, j.b_col, j.b_row, cols, to - from - (int)k);
    };
    auto put_down = [&](int step) {
        a_share.put_into(a_tiles[step & 1]);
        b_share.put_into(b_tiles[step & 1]);
    };

    int tn = threadIdx.x % THREADS_N, tm = threadIdx.x / THREADS_N;
    COMPUTE acc[ROWS][COLS];
    #pragma unroll
    for (int r = 0; r < ROWS; r++) {
        #pragma unroll
        for (int c = 0; c < COLS; c++) acc[r][c] = 0;
    }
    COMPUTE sums[SUMS ? (TILE_M + BLOCK_THREADS - 1) / BLOCK_THREADS : 1] = {};

    if (steps > 0) {
        take(0);
        put_down(0);
        __syncthreads();
    }
    for (int step = 0; step < steps; step++) {
        if (step + 1 < steps) take(step + 1);
        const COMPUTE* a_tile = a_tiles[step & 1];
        const COMPUTE* b_tile = b_tiles[step & 1];
        #pragma unroll
        for (int k = 0; k < TILE_K; k++) {
            COMPUTE x[ROWS], y[COLS];
            pick<ROWS, THREADS_M>(x, a_tile + k * A_PITCH, tm);
            pick<COLS, THREADS_N>(y, b_tile + k * B_PITCH, tn);
            #pragma unroll
            for (int r = 0; r < ROWS; r++) {
                #pragma unroll
                for (int c = 0; c < COLS; c++) acc[r][c] += x[r] * y[c];
            }
        }
        if (SUMS && p.tile_n == 0) {
            #pragma unroll
            for (int r = 0; r < TILE_M; r += BLOCK_THREADS) {
                int row = r + threadIdx.x;
                if (row < TILE_M) {
                    #pragma unroll
                    for (int k = 0; k < TILE_K; k++) sums[r / BLOCK_THREADS] += a_tile[k * A_PITCH + row];
                }
            }
        }
        // The other pair of tiles was last read before the barrier that ended the step before.
        if (step + 1 < steps) {
            put_down(step + 1);
            __syncthreads();
        }
    }

    constexpr int GROUPS = COLS / LANES, STEP = THREADS_N * LANES;
    int col = col0 + tn * LANES;
    vec<BIAS_TYPE, LANES> bias[GROUPS];
    biases<GROUPS, LANES, STEP>(j, col, bias);
    #pragma unroll
    for (int r = 0; r < ROWS; r++) {
        COMPUTE v[GROUPS][LANES];
        #pragma unroll
        for (int c = 0; c < COLS; c++) v[c / LANES][c % LANES] = acc[r][c];
        finish<GROUPS, LANES, STEP>(j, p, row0 + (r / LANES * THREADS_M + tm) * LANES + r % LANES, col, v, bias);
    }
    if (SUMS && p.tile_n == 0) {
        #pragma unroll
        for (int r = 0; r < TILE_M; r += BLOCK_THREADS) {
            int row = r + threadIdx.x;
            if (row < TILE_M) finish_sum(j, p, row0 + row, sums[r / BLOCK_THREADS]);
        }
    }
}
