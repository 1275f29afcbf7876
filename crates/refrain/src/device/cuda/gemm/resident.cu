// Products of many rows by few columns on tensor cores, as those of a layer and its weight: a block keeps all of B that
// its columns need in shared memory, a panel, while tiles of A pass by, those of its next rows beside the work on the last.
// Constants, beside those of tiles.cu:
//   SLOTS        tiles of A that find room
//   MEMORY_BYTES the shared memory that the launch gives
//   TOGETHER_BLOCKS   blocks that a multiprocessor is to hold

constexpr int DEPTH = PANEL * TILE_K;

#if !DEALT

// B's tiles one after the other along k, as they are elsewhere.
constexpr int PANEL_BYTES = PANEL * B_BYTES;
DEVICE B_TYPE* tile_of_panel(unsigned char* panel, int at) { return reinterpret_cast<B_TYPE*>(panel + at * B_BYTES); }

DEVICE void fetch_panel(const Job& j, unsigned char* panel, const B_TYPE* b, int col0) {
    for (int at = 0; at < PANEL; at++) fetch_b(j, tile_of_panel(panel, at), b, col0, at * TILE_K, (int)j.k);
}
DEVICE void multiply_by_panel(float (*acc)[FRAGS_N][4], const A_TYPE* a, unsigned char* panel, int at, int row, int col) {
    multiply_tile(acc, a, tile_of_panel(panel, at), row, col);
}

#else

// Columns one after the other, in the order that they are dealt to fragments in; rounded, where B is f32. That saves
// work with every tile of A, and takes time before the first.
constexpr int PANEL_PITCH = DEPTH + 8;
constexpr int PANEL_BYTES = TILE_N * PANEL_PITCH * (int)sizeof(IN);

// Where column `n` lies: the inverse of `column`, for each 16 columns.
DEVICE int line_of_panel(int n) { return (n & ~15) + (n & 2) * 4 + (n >> 2 & 3) * 2 + (n & 1); }

DEVICE void fetch_panel(const Job& j, unsigned char* panel, const B_TYPE* b, int col0) {
    constexpr int INNER = B_ALONG_K ? DEPTH : TILE_N;
    IN* to = reinterpret_cast<IN*>(panel);
    int n_left = (int)j.n - col0, k_left = (int)j.k;
    i64 inner_left = B_ALONG_K ? k_left : n_left, step = B_ALONG_K ? j.b_col : j.b_row;
    const B_TYPE* from = b + (B_ALONG_K ? col0 * j.b_col : col0);
    #pragma unroll 8
    for (int i = threadIdx.x * 4; i < DEPTH * TILE_N; i += BLOCK_THREADS * 4) {
        int outer = i / INNER, inner = i % INNER;
        int there = outer < (B_ALONG_K ? n_left : k_left) ? (int)min(max(inner_left - inner, (i64)0), (i64)4) : 0;
        vec<B_TYPE, 4> x;
        if (B_COPY >= 4 && there == 4) {
            x = load<4>(from + outer * step + inner);
        } else {
            #pragma unroll
            for (int e = 0; e < 4; e++) x.at[e] = e < there ? from[outer * step + inner + e] : ::from<B_TYPE>(0.0f);
        }
        vec<IN, 4> y;
        #pragma unroll
        for (int e = 0; e < 4; e++) y.at[e] = ::from<IN>(::to<float>(x.at[e]));
        if (B_ALONG_K) {
            store<4>(to + line_of_panel(outer) * PANEL_PITCH + inner, y);
        } else {
            #pragma unroll
            for (int e = 0; e < 4; e++) to[line_of_panel(inner + e) * PANEL_PITCH + outer] = y.at[e];
        }
    }
}
DEVICE void multiply_by_panel(float (*acc)[FRAGS_N][4], const A_TYPE* a, unsigned char* panel, int at, int row, int col) {
    multiply_tiles<true, PANEL_PITCH>(acc, a, reinterpret_cast<const IN*>(panel) + at * TILE_K, row, col);
}

#endif

static_assert(PANEL_BYTES + SLOTS * A_BYTES == MEMORY_BYTES, "the launch counts shared memory as the text does");

KERNEL __launch_bounds__(BLOCK_THREADS, TOGETHER_BLOCKS) gemm_resident(const __grid_constant__ Job j) {
    extern __shared__ __align__(16) unsigned char memory[];
    auto a_tile = [&](int step) { return reinterpret_cast<A_TYPE*>(memory + PANEL_BYTES + step % SLOTS * A_BYTES); };
    const A_TYPE* a = reinterpret_cast<const A_TYPE*>(j.a);
    const B_TYPE* b = reinterpret_cast<const B_TYPE*>(j.b);
    int tiles_n = (int)j.tiles_n, tiles_m = (int)j.tiles_m;
    int first = blockIdx.x / tiles_n, stride = gridDim.x / tiles_n;
    Place p = {0, 0, first, (int)(blockIdx.x % tiles_n)};
    int col0 = p.tile_n * TILE_N;
    int steps = first < tiles_m ? (tiles_m - first + stride - 1) / stride * PANEL : 0;

    auto fetch_step = [&](int step) {
        if (step < steps) {
            int row0 = (first + step / PANEL * stride) * TILE_M;
            fetch_a(j, a_tile(step), a, row0, step % PANEL * TILE_K, (int)j.k);
        }
        // Counted even where it is empty.
        commit();
    };
    // With the first of A's tiles, or beside them.
    fetch_panel(j, memory, b, col0);
    for (int step = 0; step < SLOTS - 1; step++) fetch_step(step);

    float acc[FRAGS_M][FRAGS_N][4];
    clear(acc);
    int row = warp_row(), col = warp_col();
    int first_col = col0 + col + (threadIdx.x & 3) * TOGETHER;
    float bias[GROUPS][TOGETHER];
    lane_biases(j, first_col, bias);

    for (int step = 0; step < steps; step++) {
        wait_for_copies<SLOTS - 2>();
        // This step's tile is there for all threads, the panel too, and all are done with the step before.
        __syncthreads();
        fetch_step(step + SLOTS - 1);
        multiply_by_panel(acc, a_tile(step), memory, step % PANEL, row, col);
        if (step % PANEL == PANEL - 1) {
            finish_tile(j, p, (first + step / PANEL * stride) * TILE_M + row, first_col, acc, bias);
            clear(acc);
        }
    }
}
