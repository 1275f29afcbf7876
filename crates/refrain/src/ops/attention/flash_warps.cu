// Products of tiles by warps that work alone, for `flash.cu`.

// A lane's part of an operand, of four words in shared memory that were loaded as matrices.
DEVICE Left left(const u32* words) {
    Left a;
    #pragma unroll
    for (int i = 0; i < 4; i++) {
        if (FORM == BF16) a.at[0][i] = words[i];
        else if (FORM == SPLIT_TF32) split_tf32(__uint_as_float(words[i]), a.at[0][i], a.at[PARTS - 1][i]);
        else a.at[0][i] = rounded<true>(__uint_as_float(words[i]));
    }
    return a;
}
DEVICE Right right(u32 low, u32 high) {
    Right b;
    if (FORM == BF16) {
        b.at[0][0] = low;
        b.at[0][1] = high;
    } else if (FORM == SPLIT_TF32) {
        split_tf32(__uint_as_float(low), b.at[0][0], b.at[PARTS - 1][0]);
        split_tf32(__uint_as_float(high), b.at[0][1], b.at[PARTS - 1][1]);
    } else {
        b.at[0][0] = rounded<true>(__uint_as_float(low));
        b.at[0][1] = rounded<true>(__uint_as_float(high));
    }
    return b;
}

// 16 rows as left operands, from `row` of a tile on: kept in registers, or read again at each use.
template <bool KEEP> struct LeftRows {
    Left kept[KEEP ? STEPS : 1];
    const Number* rows;

    DEVICE explicit LeftRows(const Number* tile) {
        int lane = threadIdx.x & 31;
        rows = tile + (lane & 15) * PITCH + (lane >> 4) * (STEP / 2);
    }
    DEVICE Left read(int step) const {
        u32 words[4];
        load_matrices(words, rows + step * STEP);
        return left(words);
    }
    // As soon as the rows are there.
    DEVICE void keep() {
        #pragma unroll
        for (int step = 0; step < STEPS; step++) if (KEEP) kept[KEEP ? step : 0] = read(step);
    }
    DEVICE Left at(int step) const { return KEEP ? kept[KEEP ? step : 0] : read(step); }
};
// Registers of one of them.
constexpr int LEFT_WORDS = STEPS * PARTS * 4;

// What was copied needs nothing more for products to see it after a barrier, and products need no wait.
DEVICE void publish_tiles() {}
DEVICE void wait_for_products(float (*)[4], float (*)[4]) {}

// s = a times the transpose of a tile.
template <typename A> DEVICE void multiply_rows(float (*s)[4], const A& a, const Number* tile) {
    int lane = threadIdx.x & 31;
    const Number* rows = tile + ((lane & 7) + (lane >> 4) * 8) * PITCH + (lane >> 3 & 1) * (STEP / 2);
    clear(s, TILE_EIGHTS);
    #pragma unroll
    for (int step = 0; step < STEPS; step++) {
        Left x = a.at(step);
        #pragma unroll
        for (int n = 0; n < TILE_EIGHTS; n += 2) {
            u32 b[4];
            load_matrices(b, rows + n * 8 * PITCH + step * STEP);
            Right y = right(b[0], b[1]), z = right(b[2], b[3]);
            #pragma unroll
            for (int term = 0; term < TERMS; term++) {
                multiply(s[n], x, y, term);
                multiply(s[n + 1], x, z, term);
            }
        }
    }
}

// Distance between rows of scores in shared memory.
constexpr int SCORE_PITCH = TILE + 8;

#if FORM == BF16
// Stores the 16 rows of scores of this warp, rounded to bf16.
DEVICE void put_rows(Number* tile, const float (*p)[4]) {
    int row = (threadIdx.x >> 5) * 16 + ((threadIdx.x & 31) >> 2), t = threadIdx.x & 3;
    #pragma unroll
    for (int i = 0; i < 2 * TILE_EIGHTS; i++) {
        u32 pair = pack_bf16(p[i / 2][i % 2 * 2], p[i / 2][i % 2 * 2 + 1]);
        *reinterpret_cast<u32*>(tile + (row + i % 2 * 8) * SCORE_PITCH + i / 2 * 8 + 2 * t) = pair;
    }
}

// sums = this warp's 16 columns of scores, of all rows of the block, as rows, times a tile of as many rows.
DEVICE void multiply_columns(float (*sums)[4], const Number* left, const Number* right) {
    int lane = threadIdx.x & 31;
    left += ((lane & 7) + (lane >> 4) * 8) * SCORE_PITCH + (threadIdx.x >> 5) * 16 + (lane >> 3 & 1) * 8;
    right += (lane & 15) * PITCH + (lane >> 4) * 8;
    clear(sums, EIGHTS);
    // There may be more rows than columns.
    if ((int)(threadIdx.x >> 5) * 16 >= TILE) return;
    #pragma unroll
    for (int step = 0; step < ROWS / 16; step++) {
        u32 a[4];
        load_matrices_transposed(a, left + step * 16 * SCORE_PITCH);
        #pragma unroll
        for (int d = 0; d < STEPS; d++) {
            u32 b[4];
            load_matrices_transposed(b, right + step * 16 * PITCH + d * 16);
            multiply_bf16(sums[2 * d], a, b);
            multiply_bf16(sums[2 * d + 1], a, b + 2);
        }
    }
}

// sums += p times a tile, with p rounded to bf16.
DEVICE void add_rows(float (*sums)[4], const float (*p)[4], const Number* tile) {
    int lane = threadIdx.x & 31;
    #pragma unroll
    for (int step = 0; step < TILE / 16; step++) {
        u32 a[4];
        #pragma unroll
        for (int i = 0; i < 4; i++) a[i] = pack_bf16(p[2 * step + i / 2][i % 2 * 2], p[2 * step + i / 2][i % 2 * 2 + 1]);
        #pragma unroll
        for (int d = 0; d < STEPS; d++) {
            u32 b[4];
            load_matrices_transposed(b, tile + (step * 16 + (lane & 15)) * PITCH + d * 16 + (lane >> 4) * 8);
            multiply_bf16(sums[2 * d], a, b);
            multiply_bf16(sums[2 * d + 1], a, b + 2);
        }
    }
}
#else
// sums += p times a tile. Rows 2t and 2t + 1 of each eight take the places t and t + 4 of both operands, so that p is one as it is.
DEVICE void add_rows(float (*sums)[4], const float (*p)[4], const Number* tile) {
    int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    Left a[TILE_EIGHTS];
    #pragma unroll
    for (int i = 0; i < 4 * TILE_EIGHTS; i++) {
        float x = p[i / 4][i % 2 * 2 + i % 4 / 2];
        u32* to = &a[i / 4].at[0][i % 4];
        if (FORM == SPLIT_TF32) split_tf32(x, *to, a[i / 4].at[PARTS - 1][i % 4]);
        else *to = rounded<false>(x);
    }
    #pragma unroll
    for (int d = 0; d < EIGHTS; d++) {
        float part[4] = {0, 0, 0, 0};
        #pragma unroll
        for (int n = 0; n < TILE_EIGHTS; n++) {
            const float* from = tile + (n * 8 + 2 * t) * PITCH + d * 8 + g;
            Right b = right(__float_as_uint(from[0]), __float_as_uint(from[PITCH]));
            #pragma unroll
            for (int term = 0; term < TERMS; term++) multiply(part, a[n], b, term);
        }
        // Tensor cores truncate their sums; these additions round.
        #pragma unroll
        for (int e = 0; e < 4; e++) sums[d][e] += part[e];
    }
}
#endif

// Both sums, of one product each.
DEVICE void add_rows_of_both(
    float (*x_sums)[4], const float (*x)[4], const Number* x_tile, float (*y_sums)[4], const float (*y)[4], const Number* y_tile
) {
    add_rows(x_sums, x, x_tile);
    add_rows(y_sums, y, y_tile);
}
