// Attention in bf16 of sequences of any length on tensor cores: tiles of one side pass by a block of the other, and scores
// stay in registers (Dao, "FlashAttention-2", 2023). A warp has 16 rows. Constants: HEAD_DIM, WARPS (per block), TILE (rows
// that pass by at a time), ALIGNED (8 numbers can be moved in one instruction), CAUSAL.
//
// Lane 4g + t holds, of a 16 x 8 product, columns 2t and 2t + 1 of rows g and g + 8.

constexpr int STEPS = (HEAD_DIM + 15) / 16, WIDTH = STEPS * 16, EIGHTS = WIDTH / 8;
constexpr int ROWS = WARPS * 16, THREADS = WARPS * 32;
constexpr int TILE_STEPS = TILE / 16, TILE_EIGHTS = TILE / 8;
// Distance between rows in shared memory: matrices of 8 rows are then read without bank conflicts.
constexpr int PITCH = WIDTH + 8;

constexpr float LOG2_E = 1.4426950408889634f;

DEVICE float exp2_(float x) {
    float e;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(x));
    return e;
}

// Sums and maxima over the four lanes that share a row.
DEVICE float over_row(float x) { return warp_reduce<4>(x, Add()); }
DEVICE float largest_of_row(float x) {
    x = fmaxf(x, __shfl_xor_sync(FULL, x, 1));
    return fmaxf(x, __shfl_xor_sync(FULL, x, 2));
}

// The rows of one head, and how many there are.
struct Head {
    bf16_t* at;
    i64 token;
    int count;

    DEVICE Head(const Heads& x, const Job& j, i64 pair, i64 rows) {
        i64 sequence = pair / j.heads;
        at = reinterpret_cast<bf16_t*>(x.at) + sequence * x.sequence + (pair - sequence * j.heads) * x.head;
        token = x.token;
        count = (int)rows;
    }
    // Copies rows from `first` on to shared memory; zeros behind the last one and behind the last number.
    template <int COUNT> DEVICE void load(bf16_t* tile, int first) const {
        for (int i = threadIdx.x; i < COUNT * EIGHTS; i += THREADS) {
            int row = i / EIGHTS, run = i % EIGHTS * 8;
            bf16_t* to = tile + row * PITCH + run;
            bool there = first + row < count && run < HEAD_DIM;
            const bf16_t* from = there ? at + (first + row) * token + run : at;
            if (ALIGNED) {
                copy_async<16>(to, from, there ? 16 : 0);
            } else {
                #pragma unroll
                for (int e = 0; e < 8; e++) to[e] = there && run + e < HEAD_DIM ? from[e] : bf16_t{0};
            }
        }
    }
    // Stores the 16 rows of this warp from `first` on: x(d, e) is what the lane has of columns 8 d. They pass through
    // 16 rows of shared memory that only this warp uses.
    template <typename X> DEVICE void store_rows(bf16_t* rows, int first, X x) const {
        int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
        __syncwarp();
        #pragma unroll
        for (int d = 0; d < EIGHTS; d++) {
            #pragma unroll
            for (int h = 0; h < 2; h++) {
                *reinterpret_cast<u32*>(rows + (g + h * 8) * PITCH + d * 8 + 2 * t) = pack_bf16(x(d, 2 * h), x(d, 2 * h + 1));
            }
        }
        __syncwarp();
        for (int i = lane; i < 16 * EIGHTS; i += 32) {
            int row = i / EIGHTS, run = i % EIGHTS * 8;
            if (first + row >= count || run >= HEAD_DIM) continue;
            bf16_t* to = at + (first + row) * token + run;
            const bf16_t* from = rows + row * PITCH + run;
            if (ALIGNED) {
                ::store<8>(to, ::load<8>(from));
            } else {
                #pragma unroll
                for (int e = 0; e < 8; e++) if (run + e < HEAD_DIM) to[e] = from[e];
            }
        }
    }
};

// Left operands: 16 rows from `row` on.
DEVICE void load_left(u32 (*a)[4], const bf16_t* tile, int row) {
    int lane = threadIdx.x & 31;
    #pragma unroll
    for (int step = 0; step < STEPS; step++) {
        load_matrices(a[step], tile + (row + (lane & 15)) * PITCH + step * 16 + (lane >> 4) * 8);
    }
}

DEVICE void clear(float (*x)[4], int count) {
    #pragma unroll
    for (int i = 0; i < count; i++) {
        #pragma unroll
        for (int e = 0; e < 4; e++) x[i][e] = 0;
    }
}

// s = a times the transpose of a tile.
DEVICE void multiply_rows(float (*s)[4], const u32 (*a)[4], const bf16_t* tile) {
    int lane = threadIdx.x & 31;
    clear(s, TILE_EIGHTS);
    #pragma unroll
    for (int step = 0; step < STEPS; step++) {
        #pragma unroll
        for (int n = 0; n < TILE_STEPS; n++) {
            u32 b[4];
            load_matrices(b, tile + (n * 16 + (lane & 7) + (lane >> 4) * 8) * PITCH + step * 16 + (lane >> 3 & 1) * 8);
            multiply_bf16(s[2 * n], a[step], b);
            multiply_bf16(s[2 * n + 1], a[step], b + 2);
        }
    }
}

// sums += p times a tile, with p rounded to bf16.
DEVICE void add_rows(float (*sums)[4], const float (*p)[4], const bf16_t* tile) {
    int lane = threadIdx.x & 31;
    #pragma unroll
    for (int step = 0; step < TILE_STEPS; step++) {
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

// The scores of two rows, `query` and the one 8 behind it: of a lane, columns 2t and 2t + 1 of each eight. The factor of the
// exponent is positive; a negative scale changes the sign of the scores.
struct Exponent {
    float sign, factor;

    DEVICE explicit Exponent(const Job& j) {
        sign = j.scale < 0 ? -1.0f : 1.0f;
        factor = fabsf((float)j.scale) * LOG2_E;
    }
    // The exponential of a score relative to the largest. The difference is exact where it matters, also of large scores.
    DEVICE float of(float s, float largest) const { return exp2_((s - largest) * factor); }
};

// Whether a query sees a key.
DEVICE bool seen(const Job& j, int query, int key) { return key < (int)j.keys && (!CAUSAL || key <= query); }

// What is subtracted from the scores. Rows whose scores are all minus infinity have no weight: their quotients are NaN.
DEVICE float base_of(float largest) { return largest == -INFINITY_F ? 0.0f : largest; }

// What the gradients need of a row of scores: the largest, 1 / the sum of the exponentials, and the sum of the weights
// times their gradients. It is computed again in the backward pass, so that this does not depend on which kernel ran the
// forward pass.
struct Softmax { float largest, inverse, delta; };
