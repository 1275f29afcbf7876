// Matrix products of f16 or bf16 by warp groups (compute capability 9.0): a block computes a tile of C. Shared memory
// holds STAGES tiles of both operands. They are copied asynchronously, in their order in memory except for the
// swizzling that the hardware expects. The warps of a block compute different rows. Constants, beside those of
// tiles.cu:
//   SUMS         also sums A's rows
//   STAGES       tiles of both operands in shared memory
//   MEMORY_BYTES the shared memory for all of them; a launch of fewer steps has less
//   ONE_OF_TWO   whether a multiprocessor has room for two blocks of large tiles

static_assert((FORM == F16 || FORM == BF16) && sizeof(A_TYPE) == 2 && sizeof(B_TYPE) == 2, "what is multiplied");
static_assert(A_COPY % 4 == 0 && B_COPY % 4 == 0 && TILE_K == 64 && TILE_M % 64 == 0 && TILE_N % 64 == 0, "the form of a tile");
static_assert(WARPS_M % 4 == 0 && WARPS_N == 1 && FRAGS_M == 1, "warps that are groups");
static_assert(!SUMS || !A_ALONG_K, "rows are summed across");

typedef Swizzled<A_TYPE, A_ALONG_K, TILE_M, false> TilesA;
typedef Swizzled<B_TYPE, B_ALONG_K, TILE_N, B_ALONG_K> TilesB;
constexpr int STAGE_BYTES = TilesA::BYTES + TilesB::BYTES;
static_assert(STAGES >= 3 && STAGES * STAGE_BYTES <= MEMORY_BYTES, "the launch counts shared memory as the text does");

static_assert(SumsAlongK<TilesA>::BYTES <= STAGE_BYTES, "the block's sums find room");

// What follows a product waits for what it reads, and may compute long. Five small blocks on a multiprocessor hide that better than the
// four that fit if the compiler may take all the registers that it likes, and two large ones better than one.
constexpr int RESIDENT = BLOCK_THREADS == 128 ? TAIL ? 5 : 1 : ONE_OF_TWO ? 2 : 1;

KERNEL_THAT_WAITS(gemm_swizzled, Job, j, __launch_bounds__(BLOCK_THREADS, RESIDENT)) {
    extern __shared__ __align__(1024) unsigned char memory[];
    Place p = place(j);
    int from = (int)(p.split * j.depth), left = (int)min(j.k - from, j.depth);
    const A_TYPE* a;
    const B_TYPE* b;
    begin(j, p.batch, a, b);
    auto a_pieces = pieces_of_a<TilesA>(j, a, p.tile_m * TILE_M, from);
    auto b_pieces = pieces_of_b<TilesB>(j, b, p.tile_n * TILE_N, from);
    take_turn(j, p);
    int steps = (left + TILE_K - 1) / TILE_K, fetched = 0, fetch_slot = 0;
    auto fetch_next = [&] {
        if (fetched < steps) {
            unsigned char* to = memory + fetch_slot * STAGE_BYTES;
            a_pieces.copy(reinterpret_cast<A_TYPE*>(to), left - fetched * TILE_K);
            b_pieces.copy(reinterpret_cast<B_TYPE*>(to + TilesA::BYTES), left - fetched * TILE_K);
        }
        // An empty group is committed too, since the waits count groups.
        commit();
        fetched++;
        fetch_slot = fetch_slot + 1 < STAGES ? fetch_slot + 1 : 0;
    };

    float acc[1][FRAGS_N][4];
    clear(acc);
    // Else the compiler sets some of them to zero between the products, and then waits for each of these.
    keep_until_here<4 * FRAGS_N>(&acc[0][0][0]);
    bool sums = SUMS && p.tile_n == 0;
    SumsAlongK<TilesA> rows;
    // The descriptors of the warp group's 64 rows of A's first tile, and of B's.
    u32 first = shared_address(memory);
    u64 a_first = TilesA::described(first + (threadIdx.x >> 7) * (A_ALONG_K ? 64 * 128 : TilesA::BESIDE));
    u64 b_first = TilesB::described(first + TilesA::BYTES);

    for (int i = 0; i < STAGES - 2; i++) fetch_next();
    for (int step = 0, slot = 0; step < steps; step++, slot = slot + 1 < STAGES ? slot + 1 : 0) {
        wait_for_copies<STAGES - 3>();
        publish_to_groups();
        // After this, all threads see this step's tiles, and all warp groups have finished the products of the step
        // before the previous one. The next tiles overwrite its tiles.
        __syncthreads();
        begin_groups();
        #pragma unroll
        for (int i = 0; i < TILE_K / 16; i++) {
            u64 a_at = a_first + ((slot * STAGE_BYTES + i * TilesA::ON) >> 4);
            u64 b_at = b_first + ((slot * STAGE_BYTES + i * TilesB::ON) >> 4);
            multiply_group<FRAGS_N, FORM == F16, !A_ALONG_K, !B_ALONG_K>(acc[0], a_at, b_at);
        }
        commit_groups();
        fetch_next();
        if (sums) rows.add(reinterpret_cast<const A_TYPE*>(memory + slot * STAGE_BYTES));
        wait_for_groups<FRAGS_N, 1>(acc[0]);
    }
    wait_for_groups<FRAGS_N, 0>(acc[0]);
    finish_block(j, p, acc, memory);
    if (sums) {
        float sum = rows.whole(memory);
        if (threadIdx.x < TILE_M) finish_sum(j, p, p.tile_m * TILE_M + (int)threadIdx.x, sum);
    }
}
