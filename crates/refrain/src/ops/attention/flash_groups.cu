// Products of tiles by the four warps of a block together (compute capability 9.0), for `flash.cu`: the same sums, bit for bit, as
// those of warps that work alone.

static_assert(FORM == BF16 && WARPS == 4 && TILE == 64 && HEAD_DIM <= 64, "what is multiplied");

// What was copied to shared memory is visible to products after the next barrier.
DEVICE void publish_tiles() { publish_to_groups(); }

// Waits for all products. Both results can be read after it.
DEVICE void wait_for_products(float (*x)[4], float (*y)[4]) {
    wait_for_groups<8, 0>(x);
    wait_for_groups<8, 0>(y);
}

// A tile whose rows run along k, and one whose rows run across it: the steps between 16 numbers along k.
DEVICE u64 along_k(const Number* tile) { return describe(shared_address(tile), 1024, 16); }
DEVICE u64 across_k(const Number* tile) { return describe(shared_address(tile), 1024, 64 * TILE * 2); }
constexpr int ON_ALONG = 32 >> 4, ON_ACROSS = 16 * 128 >> 4;

// The rows of the block as a left operand, from those of this warp on.
template <bool> struct LeftRows {
    u64 rows;

    DEVICE explicit LeftRows(const Number* tile) { rows = along_k(tile - (threadIdx.x >> 5) * 16 * PITCH); }
    DEVICE void keep() {}
};
constexpr int LEFT_WORDS = 0;
constexpr int SCORE_PITCH = PITCH;

// s = a times the transpose of a tile.
template <typename A> DEVICE void multiply_rows(float (*s)[4], const A& a, const Number* tile) {
    u64 b = along_k(tile);
    clear(s, TILE_EIGHTS);
    begin_groups();
    #pragma unroll
    for (int step = 0; step < STEPS; step++) {
        multiply_group<8, false, false, false>(s, a.rows + step * ON_ALONG, b + step * ON_ALONG);
    }
    commit_groups();
}

// The left operand of products with rows of a tile: numbers of this warp's 16 rows, rounded to bf16.
struct Packed {
    u32 at[TILE / 16][4];

    DEVICE explicit Packed(const float (*p)[4]) {
        #pragma unroll
        for (int i = 0; i < TILE / 4; i++) {
            const float* from = p[i / 4 * 2 + i % 4 / 2] + i % 2 * 2;
            at[i / 4][i % 4] = pack_bf16(from[0], from[1]);
        }
    }
    // Begins sums += this times a tile.
    DEVICE void multiply(float (*sums)[4], const Number* tile) const {
        u64 b = across_k(tile);
        #pragma unroll
        for (int step = 0; step < TILE / 16; step++) multiply_group_across<8>(sums, at[step], b + step * ON_ACROSS);
    }
    // It must not change before the products have ended.
    DEVICE void keep() {
        #pragma unroll
        for (int step = 0; step < TILE / 16; step++) keep_until_here<4>(at[step]);
    }
};

// sums += p times a tile, with p rounded to bf16.
DEVICE void add_rows(float (*sums)[4], const float (*p)[4], const Number* tile) {
    Packed a(p);
    begin_groups();
    a.multiply(sums, tile);
    commit_groups();
    wait_for_groups<8, 0>(sums);
    a.keep();
}

// Both sums, of one product each.
DEVICE void add_rows_of_both(
    float (*x_sums)[4], const float (*x)[4], const Number* x_tile, float (*y_sums)[4], const float (*y)[4], const Number* y_tile
) {
    Packed a(x), b(y);
    begin_groups();
    a.multiply(x_sums, x_tile);
    b.multiply(y_sums, y_tile);
    commit_groups();
    wait_for_products(x_sums, y_sums);
    a.keep();
    b.keep();
}

// Stores the 16 rows of this warp in a tile, rounded to bf16.
DEVICE void put_rows(Number* tile, const float (*p)[4]) {
    int row = (threadIdx.x >> 5) * 16 + ((threadIdx.x & 31) >> 2), t = threadIdx.x & 3;
    #pragma unroll
    for (int i = 0; i < 2 * TILE_EIGHTS; i++) {
        u32 pair = pack_bf16(p[i / 2][i % 2 * 2], p[i / 2][i % 2 * 2 + 1]);
        *reinterpret_cast<u32*>(tile + place(row + i % 2 * 8, i / 2 * 8 + 2 * t)) = pair;
    }
}

// Begins sums = the transpose of a tile times another tile.
DEVICE void multiply_columns(float (*sums)[4], const Number* left, const Number* right) {
    u64 a = across_k(left), b = across_k(right);
    clear(sums, EIGHTS);
    begin_groups();
    #pragma unroll
    for (int step = 0; step < TILE / 16; step++) {
        multiply_group<8, false, true, true>(sums, a + step * ON_ACROSS, b + step * ON_ACROSS);
    }
    commit_groups();
}
