// Products of many rows by few columns on tensor cores, as those of a layer and its weight: a block keeps the tiles of
// B that its columns need (PANEL of them along k) in shared memory, while tiles of A pass by, those of its next rows
// beside the work on the last. A constant, beside those of tiles.cu:
//   SLOTS       tiles of A that find room

KERNEL __launch_bounds__(BLOCK_THREADS) gemm_resident(const __grid_constant__ Job j) {
    extern __shared__ __align__(16) unsigned char memory[];
    auto a_tile = [&](int step) { return reinterpret_cast<A_TYPE*>(memory + PANEL * B_BYTES + step % SLOTS * A_BYTES); };
    auto b_tile = [&](int at) { return reinterpret_cast<B_TYPE*>(memory + at * B_BYTES); };
    const A_TYPE* a = reinterpret_cast<const A_TYPE*>(j.a);
    const B_TYPE* b = reinterpret_cast<const B_TYPE*>(j.b);
    int k = (int)j.k, tiles_n = (int)j.tiles_n, tiles_m = (int)j.tiles_m;
    int first = blockIdx.x / tiles_n, stride = gridDim.x / tiles_n;
    Place p = {0, 0, first, (int)(blockIdx.x % tiles_n)};
    int col0 = p.tile_n * TILE_N;
    int steps = first < tiles_m ? (tiles_m - first + stride - 1) / stride * PANEL : 0;

    auto fetch_step = [&](int step) {
        if (step < steps) {
            int at = step % PANEL;
            fetch_a(j, a_tile(step), a, (first + step / PANEL * stride) * TILE_M, at * TILE_K, k);
            if (step < PANEL) fetch_b(j, b_tile(at), b, col0, at * TILE_K, k);
        }
        // Counted even where it is empty.
        commit();
    };

    float acc[FRAGS_M][FRAGS_N][4];
    clear(acc);
    int row = warp_row(), col = warp_col();
    int first_col = col0 + col + (threadIdx.x & 3) * TOGETHER;
    float bias[GROUPS][TOGETHER];
    lane_biases(j, first_col, bias);

    for (int step = 0; step < SLOTS - 1; step++) fetch_step(step);
    for (int step = 0; step < steps; step++) {
        wait_for_copies<SLOTS - 2>();
        // This step's tiles are there for all threads, and all are done with A's of the step before.
        __syncthreads();
        fetch_step(step + SLOTS - 1);
        int at = step % PANEL;
        multiply_tile(acc, a_tile(step), b_tile(at), row, col);
        if (at == PANEL - 1) {
            finish_tile(j, p, (first + step / PANEL * stride) * TILE_M + row, first_col, acc, bias);
            clear(acc);
        }
    }
}
