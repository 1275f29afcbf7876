// One of the products of a kernel that has several, in a namespace of its own: a block computes TILE_M rows of C, TILE_N columns at
// a time. Constants, beside those of tiles.cu:
//   STEPS    tiles along k
//   CHUNKS   times TILE_N columns
//   A_PITCH  numbers from one row to the next of the product before, if FOLLOWS
//   A_BYTES, B_BYTES   the shared memory of the tiles of A, if the stage has some, and of B, all of which are there at once

constexpr int BYTES_OF_A = A_BYTES, BYTES_OF_B = B_BYTES, WARPS_ALONG_N = WARPS_N;
static_assert(CHUNKS * STEPS * TileB::BYTES == B_BYTES, "the launch counts shared memory as the text does");
static_assert(!NORM || CHUNKS == 1, "a norm has whole rows");

#if FOLLOWS
constexpr int NEXT_A = TILE_K;
#else
static_assert(STEPS * TileA::BYTES == A_BYTES, "the launch counts shared memory as the text does");
constexpr int NEXT_A = TileA::BYTES / (int)sizeof(A_TYPE);

// Begins to copy the block's rows of A.
DEVICE void fetch_a(const Job& j, const Place& p, unsigned char* tiles) {
    auto pieces = pieces_of_a<TileA>(j, reinterpret_cast<const A_TYPE*>(j.a), p.tile_m * TILE_M, 0);
    #pragma unroll
    for (int step = 0; step < STEPS; step++) {
        pieces.copy(reinterpret_cast<A_TYPE*>(tiles) + step * NEXT_A, (int)j.k - step * TILE_K);
    }
}
#endif
constexpr int NEXT_B = TileB::BYTES / (int)sizeof(B_TYPE);

// Begins to copy B.
DEVICE void fetch_b(const Job& j, unsigned char* tiles) {
    B_TYPE* to = reinterpret_cast<B_TYPE*>(tiles);
    #pragma unroll
    for (int chunk = 0; chunk < CHUNKS; chunk++) {
        auto pieces = pieces_of_b<TileB>(j, reinterpret_cast<const B_TYPE*>(j.b), chunk * TILE_N, 0);
        #pragma unroll
        for (int step = 0; step < STEPS; step++, to += NEXT_B) pieces.copy(to, (int)j.k - step * TILE_K);
    }
}

// Computes the block's rows of C, and leaves them in `rows` if something follows. All warps have the tiles of A and B.
DEVICE void run(const Job& j, Place& p, const unsigned char* a_tiles, const unsigned char* b_tiles, unsigned char* rows) {
    const A_TYPE* a = reinterpret_cast<const A_TYPE*>(a_tiles);
    const B_TYPE* b = reinterpret_cast<const B_TYPE*>(b_tiles);
    #pragma unroll 1
    for (int chunk = 0; chunk < CHUNKS; chunk++) {
        float acc[FRAGS_M][FRAGS_N][4];
        clear(acc);
        #pragma unroll
        for (int step = 0; step < STEPS; step++, b += NEXT_B) multiply_tile(acc, nullptr, a + step * NEXT_A, b, warp_row(), warp_col());
        p.tile_n = chunk;
        finish_block(j, p, acc, rows);
    }
}
