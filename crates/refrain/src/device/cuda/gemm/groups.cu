// What the kernels of warp groups share. Constants, beside those of tiles.cu, whose warps stand one below the other here:
//   SUMS         also sums A's rows
//   STAGES       tiles that find room, of f16 and bf16
//   MEMORY_BYTES the shared memory that the launch gives

static_assert(WARPS_M % 4 == 0 && WARPS_N == 1 && FRAGS_M == 1, "the form of a tile");

// Where a block's part of k begins, and how much of it is there.
DEVICE int beginning(const Job& j, const Place& p) { return (int)min(p.split * j.depth, j.k); }
DEVICE int rest_of(const Job& j, const Place& p) { return (int)min(j.k - beginning(j, p), j.depth); }

// Takes a block's tile.
DEVICE void finish_group(const Job& j, const Place& p, float (*acc)[FRAGS_N][4]) {
    int col = p.tile_n * TILE_N + (threadIdx.x & 3) * TOGETHER;
    float bias[GROUPS][TOGETHER];
    lane_biases(j, col, bias);
    finish_tile(j, p, p.tile_m * TILE_M + warp_row(), col, acc, bias);
}
