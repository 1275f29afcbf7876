// Products of tiles that are copied while others are multiplied. Constants: those of tiles.cu.

#if GROUPS && FORM == TF32 && !A_ALONG_K
// Groups find TF32 numbers across k in registers only, and only those of A: row g and row g + 8 of a warp's 16, each of lane t's numbers
// t and t + 4 of eight along k.
struct RowsOfA {
    int first[2];

    DEVICE RowsOfA() {
        #pragma unroll
        for (int h = 0; h < 2; h++) first[h] = TileA::place_of(first_row() + ((int)threadIdx.x & 31) / 4 + 8 * h, threadIdx.x & 3);
    }
    DEVICE void load(u32 (*x)[4], const IN* a) const {
        static_assert(TileA::ALIKE == 4, "every fourth line has its numbers at the same places");
        #pragma unroll
        for (int i = 0; i < TILE_K / 8; i++) {
            #pragma unroll
            for (int r = 0; r < 4; r++) x[i][r] = __float_as_uint(a[first[r & 1] + (i * 8 + (r >> 1) * 4) * TileA::PITCH]);
        }
    }
};
#endif

// Multiplies `steps` pairs of tiles; `fetch` copies the next pair into the tiles that it is given, and `sum` sees those of B. Nothing is
// in flight behind it.
template <typename FETCH, typename SUM>
DEVICE void multiply_tiles(COMPUTE (*acc)[FRAGS_N][4], unsigned char* memory, int steps, FETCH fetch, SUM sum) {
    int fetched = 0, fetch_slot = 0;
    auto fetch_next = [&] {
        if (fetched < steps) {
            unsigned char* to = memory + fetch_slot * STAGE_BYTES;
            fetch(fetched, reinterpret_cast<IN*>(to), reinterpret_cast<IN*>(to + TileA::BYTES));
        }
        // An empty group is committed too, since the waits count groups.
        commit();
        fetched++;
        fetch_slot = fetch_slot + 1 < STAGES ? fetch_slot + 1 : 0;
    };
    clear(acc);
#if GROUPS
    static_assert(FORM != TF32 || B_ALONG_K, "groups multiply TF32 numbers of B along k");
    // The descriptors of the group's rows of A's first tile, and of its columns of B's.
    constexpr int ROWS = A_ALONG_K ? 64 * 128 : TileA::BESIDE, COLUMNS = B_ALONG_K ? FRAGS_N * 8 * 128 : FRAGS_N / 8 * TileB::BESIDE;
    // All lanes of a warp have the same one, which the compiler can't see.
    const int group = __shfl_sync(~0u, threadIdx.x >> 7, 0);
    const u32 first = shared_address(memory);
    const u64 a_first = TileA::described(first + group % (WARPS_M / 4) * ROWS);
    const u64 b_first = TileB::described(first + TileA::BYTES + group / (WARPS_M / 4) * COLUMNS);
#if FORM == TF32 && !A_ALONG_K
    const RowsOfA rows;
#endif
#endif
    for (int i = 0; i < STAGES - 1; i++) fetch_next();
    for (int step = 0, slot = 0; step < steps; step++, slot = slot + 1 < STAGES ? slot + 1 : 0) {
        wait_for_copies<STAGES - 2>();
#if GROUPS
        publish_to_groups();
#endif
        // After this, all threads see this step's tiles, and all have finished the products of the previous step, whose tiles the next
        // ones overwrite.
        __syncthreads();
        const IN* a = reinterpret_cast<const IN*>(memory + slot * STAGE_BYTES);
        const IN* b = reinterpret_cast<const IN*>(memory + slot * STAGE_BYTES + TileA::BYTES);
#if GROUPS
#if FORM == TF32 && !A_ALONG_K
        u32 x[TILE_K / 8][4];
        rows.load(x, a);
#endif
        begin_groups();
        #pragma unroll
        for (int i = 0; i < 4; i++) {
            const u64 a_at = behind(a_first, slot * STAGE_BYTES + i * TileA::ON);
            const u64 b_at = behind(b_first, slot * STAGE_BYTES + i * TileB::ON);
#if FORM != TF32
            multiply_group<FRAGS_N, FORM == F16, !A_ALONG_K, !B_ALONG_K>(acc[0], a_at, b_at);
#elif A_ALONG_K
            multiply_group_tf32<FRAGS_N>(acc[0], a_at, b_at);
#else
            multiply_group<FRAGS_N>(acc[0], x[i][0], x[i][1], x[i][2], x[i][3], b_at, true);
#endif
        }
        commit_groups();
        fetch_next();
        sum(b);
        wait_for_groups<FRAGS_N, 0>(acc[0]);
#if FORM == TF32 && !A_ALONG_K
        keep_until_here<TILE_K / 2>(&x[0][0]);
#endif
#else
        fetch_next();
        multiply_tile(acc, nullptr, a, b, first_row(), first_column());
        sum(b);
#endif
    }
    __syncthreads();
}
