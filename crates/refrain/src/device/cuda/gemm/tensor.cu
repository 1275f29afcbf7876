// Matrix products on tensor cores: a block computes a tile of C. Tiles of both operands are copied to shared memory
// asynchronously, STAGES ahead. A constant, beside those of tiles.cu:
//   SUMS         also sums A's rows

constexpr int FITTING = Tiles<TILE_K>::STAGES;
constexpr int STAGES = FITTING > 4 ? 4 : FITTING;

KERNEL __launch_bounds__(BLOCK_THREADS) gemm_tensor(const __grid_constant__ Job j) {
    __shared__ __align__(16) unsigned char memory[STAGES][A_BYTES + B_BYTES];
    auto a_tile = [&](int step) { return reinterpret_cast<A_TYPE*>(memory[step % STAGES]); };
    auto b_tile = [&](int step) { return reinterpret_cast<B_TYPE*>(memory[step % STAGES] + A_BYTES); };
    Place p = place(j);
    const A_TYPE* a;
    const B_TYPE* b;
    begin(j, p.batch, a, b);
    int from = (int)(p.split * j.depth), to = (int)min(j.k, p.split * j.depth + j.depth);
    int row0 = p.tile_m * TILE_M, col0 = p.tile_n * TILE_N;
    int steps = (to - from + TILE_K - 1) / TILE_K;

    auto fetch_step = [&](int step) {
        if (step < steps) {
            int k = from + step * TILE_K;
            fetch_a(j, a_tile(step), a, row0, k, to);
            fetch_b(j, b_tile(step), b, col0, k, to);
        }
        // Counted even where it is empty.
        commit();
    };

    float acc[FRAGS_M][FRAGS_N][4];
    clear(acc);
    int row = warp_row(), col = warp_col();
    bool sums = SUMS && p.tile_n == 0 && threadIdx.x < TILE_M;
    float sum = 0;

    for (int step = 0; step < STAGES - 1; step++) fetch_step(step);
    for (int step = 0; step < steps; step++) {
        wait_for_copies<STAGES - 2>();
        // This step's tiles are there for all threads, and all are done with those of the step before.
        __syncthreads();
        fetch_step(step + STAGES - 1);
        const A_TYPE* tile = a_tile(step);
        multiply_tile(acc, tile, b_tile(step), row, col);
        if (sums) {
            #pragma unroll
            for (int k = 0; k < TILE_K; k++) {
                sum += ::to<float>(tile[A_ALONG_K ? threadIdx.x * A_PITCH + k : k * A_PITCH + threadIdx.x]);
            }
        }
    }

    int first = col0 + col + (threadIdx.x & 3) * TOGETHER;
    float bias[GROUPS][TOGETHER];
    lane_biases(j, first, bias);
    finish_tile(j, p, row0 + row, first, acc, bias);
    if (sums) finish_sum(j, p, row0 + threadIdx.x, sum);
}
