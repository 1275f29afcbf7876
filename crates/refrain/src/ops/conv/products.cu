// Multiplies `steps` pairs of tiles; `fetch` copies the next pair into the tiles that it is given. Nothing is in flight behind it.
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
    static_assert(FORM != TF32 || BOTH_ALONG_K, "groups multiply TF32 numbers along k");
    // The descriptors of the group's rows of A's first tile, and of its columns of B's.
    constexpr int ROWS = A_ALONG_K ? 64 * 128 : TileA::BESIDE, COLUMNS = B_ALONG_K ? FRAGS_N * 8 * 128 : FRAGS_N / 8 * TileB::BESIDE;
    const int group = threadIdx.x >> 7;
    const u32 first = shared_address(memory);
    const u64 a_first = TileA::described(first + group % (WARPS_M / 4) * ROWS);
    const u64 b_first = TileB::described(first + TileA::BYTES + group / (WARPS_M / 4) * COLUMNS);
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
#if GROUPS
        begin_groups();
        #pragma unroll
        for (int i = 0; i < 4; i++) {
            const u64 a_at = a_first + ((slot * STAGE_BYTES + i * TileA::ON) >> 4), b_at = b_first + ((slot * STAGE_BYTES + i * TileB::ON) >> 4);
            if constexpr (FORM == TF32) multiply_group_tf32<FRAGS_N>(acc[0], a_at, b_at);
            else multiply_group<FRAGS_N, FORM == F16, !A_ALONG_K, !B_ALONG_K>(acc[0], a_at, b_at);
        }
        commit_groups();
        fetch_next();
        sum(a);
        wait_for_groups<FRAGS_N, 0>(acc[0]);
#else
        fetch_next();
        multiply_tile(acc, nullptr, a, reinterpret_cast<const IN*>(memory + slot * STAGE_BYTES + TileA::BYTES), first_row(), first_column());
        sum(a);
#endif
    }
    __syncthreads();
}
