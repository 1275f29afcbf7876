// Matrix products on tensor cores: a block computes a tile of C. Tiles of both operands are copied to shared memory
// asynchronously, STAGES ahead. Constants, beside those of tiles.cu:
//   SUMS         also sums A's rows
//   STAGES       tiles of both operands in shared memory
//   MEMORY_BYTES the shared memory of the launch

constexpr int STAGE_BYTES = TileA::BYTES + TileB::BYTES;
// Tensor cores sum rows as well, as they multiply them by ones; what they would round before is summed by threads.
constexpr bool SUMS_BY_PRODUCTS = SUMS && !WIDE && sizeof(A_TYPE) == 2;
static_assert(STAGES * STAGE_BYTES == MEMORY_BYTES, "the launch counts shared memory as the text does");

KERNEL_THAT_WAITS(gemm_tensor, Job, j, __launch_bounds__(BLOCK_THREADS)) {
    extern __shared__ __align__(16) unsigned char memory[];
    auto a_tile = [&](int slot) { return reinterpret_cast<A_TYPE*>(memory + slot * STAGE_BYTES); };
    auto b_tile = [&](int slot) { return reinterpret_cast<B_TYPE*>(memory + slot * STAGE_BYTES + TileA::BYTES); };
    Place p = place(j);
    const A_TYPE* a;
    const B_TYPE* b;
    begin(j, p.batch, a, b);
    int from = (int)(p.split * j.depth), to = (int)min(j.k, p.split * j.depth + j.depth);
    int row0 = p.tile_m * TILE_M, col0 = p.tile_n * TILE_N;
    int steps = (to - from + TILE_K - 1) / TILE_K;

    auto a_pieces = pieces_of_a<TileA>(j, a, row0, from);
    auto b_pieces = pieces_of_b<TileB>(j, b, col0, from);
    take_turn(j, p);
    int fetched = 0, fetch_slot = 0;
    auto fetch_next = [&] {
        if (fetched < steps) {
            int left = to - from - fetched * TILE_K;
            a_pieces.copy(a_tile(fetch_slot), left);
            b_pieces.copy(b_tile(fetch_slot), left);
        }
        // An empty group is committed too, since the waits count groups.
        commit();
        fetched++;
        fetch_slot = fetch_slot + 1 < STAGES ? fetch_slot + 1 : 0;
    };

    float acc[FRAGS_M][FRAGS_N][4];
    clear(acc);
    int row = warp_row(), col = warp_col();
    bool sums = SUMS && !SUMS_BY_PRODUCTS && p.tile_n == 0 && threadIdx.x < TILE_M;
    float sum = 0, row_sums[FRAGS_M][4] = {};

    for (int i = 0; i < STAGES - 1; i++) fetch_next();
    for (int step = 0, slot = 0; step < steps; step++, slot = slot + 1 < STAGES ? slot + 1 : 0) {
        wait_for_copies<STAGES - 2>();
        // After this, all threads see this step's tiles, and no thread needs those of the previous step.
        __syncthreads();
        fetch_next();
        const A_TYPE* tile = a_tile(slot);
        multiply_tile(acc, SUMS_BY_PRODUCTS ? row_sums : nullptr, tile, b_tile(slot), row, col);
        if (sums) {
            #pragma unroll
            for (int k = 0; k < TILE_K; k++) {
                sum += ::to<float>(tile[TileA::place_of(threadIdx.x, k)]);
            }
        }
    }

    finish_block(j, p, acc, memory);
    if (sums) finish_sum(j, p, row0 + threadIdx.x, sum);
    if (SUMS_BY_PRODUCTS && p.tile_n == 0 && col == 0 && (threadIdx.x & 3) == 0) {
        #pragma unroll
        for (int i = 0; i < 2 * FRAGS_M; i++) {
            finish_sum(j, p, row0 + row + i * 8 + ((int)(threadIdx.x & 31) >> 2), row_sums[i / 2][i % 2 * 2]);
        }
    }
}
