// Attention of sequences of any length on tensor cores: tiles of one side pass by a block of the other, and scores
// stay in registers (Dao, "FlashAttention-2", 2023). A warp has 16 rows. Constants: IN (dtype of the operands), FORM (the number
// format of products), HEAD_DIM, WARPS (per block), TILE (rows that pass by at a time), GROUPS (whether the four warps of a block
// multiply together), MEMORY_BYTES (shared memory of the launch), PIECE (numbers of a row in memory that can be moved in one
// instruction, at most RUN), CAUSAL.
//
// Lane 4g + t holds, of a 16 x 8 product, columns 2t and 2t + 1 of rows g and g + 8.

// The numbers in shared memory, how many of them are moved at once, and how many of a row a multiplication takes.
#if FORM == BF16
typedef bf16_t Number;
constexpr int RUN = 8, STEP = 16;
#else
typedef float Number;
constexpr int RUN = 4, STEP = 8;
#endif
constexpr int STEPS = (HEAD_DIM + STEP - 1) / STEP;
constexpr int ROWS = WARPS * 16, THREADS = WARPS * 32;
constexpr int TILE_EIGHTS = TILE / 8;
#if GROUPS
// Rows of 128 bytes, of which pieces of 16 bytes are permuted, as products by groups of warps expect them.
constexpr int WIDTH = 64, PITCH = WIDTH;
DEVICE int place(int row, int at) { return row * PITCH + ((at / 8 ^ (row & 7)) * 8 + at % 8); }
#else
// Distance between rows in shared memory: matrices of 8 rows are then read without bank conflicts.
constexpr int WIDTH = STEPS * STEP, PITCH = WIDTH + RUN;
DEVICE int place(int row, int at) { return row * PITCH + at; }
#endif
constexpr int EIGHTS = WIDTH / 8;
// Blocks on a multiprocessor that the registers must leave room for, where they do so without numbers that move to memory.
constexpr bool FITS_THREE = GROUPS || FORM == SPLIT_TF32 || HEAD_DIM <= 48 || FORM == TF32 && !DROPS;
constexpr int RESIDENT = FITS_THREE && (!HAS_SCORES || HEAD_DIM <= 16) ? 3 : 1;
constexpr bool FEW_REGISTERS = GROUPS && !HAS_SCORES && !DROPS;

// Sums and maxima over the four lanes that share a row.
DEVICE float over_row(float x) { return warp_reduce<4>(x, Add()); }
DEVICE float largest_of_row(float x) {
    x = fmaxf(x, __shfl_xor_sync(FULL, x, 1));
    return fmaxf(x, __shfl_xor_sync(FULL, x, 2));
}

// The rows of one head, and how many there are. Pairs fit in 31 bits.
struct Head {
    IN* at;
    i64 token;
    int count;

    DEVICE Head(const Heads& x, const Job& j, i64 pair, i64 rows) {
        u32 sequence = (u32)pair / (u32)j.heads;
        at = reinterpret_cast<IN*>(x.at) + sequence * x.sequence + ((u32)pair - sequence * (u32)j.heads) * x.head;
        token = x.token;
        count = (int)rows;
    }
    // Copies rows from `first` on to shared memory; zeros behind the last one and behind the last number.
    template <int COUNT> DEVICE void load(Number* tile, int first) const {
        constexpr int RUNS = WIDTH / RUN;
        // All threads take the same turns: products by groups of warps would wait for one another around a loop that they leave
        // apart.
        #pragma unroll 2
        for (int begin = 0; begin < COUNT * RUNS; begin += THREADS) {
            int i = begin + threadIdx.x;
            if (COUNT * RUNS % THREADS != 0 && i >= COUNT * RUNS) continue;
            int row = i / RUNS, run = i % RUNS * RUN;
            Number* to = tile + place(row, run);
            #pragma unroll
            for (int e = 0; e < RUN; e += PIECE) {
                bool there = first + row < count && run + e < HEAD_DIM;
                const IN* from = there ? at + (first + row) * token + run + e : at;
                if constexpr (sizeof(IN) == sizeof(Number)) {
                    constexpr int BYTES = PIECE * (int)sizeof(IN);
                    copy_async<BYTES>(to + e, from, there ? BYTES : 0);
                } else {
                    vec<IN, PIECE> v = {};
                    if (there) v = ::load<PIECE>(from);
                    #pragma unroll
                    for (int i = 0; i < PIECE; i++) to[e + i] = ::from<Number>(::to<float>(v.at[i]));
                }
            }
        }
    }
    // Stores the 16 rows of this warp from `first` on: x(d, e) is what the lane has of columns 8 d. They pass through
    // 16 rows of shared memory that only this warp uses.
    template <typename X> DEVICE void store_rows(Number* rows, int first, X x) const {
        constexpr int RUNS = WIDTH / RUN;
        int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
        __syncwarp();
        #pragma unroll
        for (int d = 0; d < EIGHTS; d++) {
            #pragma unroll
            for (int h = 0; h < 2; h++) {
                vec<Number, 2> v = {{::from<Number>(x(d, 2 * h)), ::from<Number>(x(d, 2 * h + 1))}};
                ::store<2>(rows + place(g + h * 8, d * 8 + 2 * t), v);
            }
        }
        __syncwarp();
        for (int i = lane; i < 16 * RUNS; i += 32) {
            int row = i / RUNS, run = i % RUNS * RUN;
            if (first + row >= count || run >= HEAD_DIM) continue;
            IN* to = at + (first + row) * token + run;
            vec<Number, RUN> x = ::load<RUN>(rows + place(row, run));
            #pragma unroll
            for (int e = 0; e < RUN; e += PIECE) {
                vec<IN, PIECE> v;
                #pragma unroll
                for (int i = 0; i < PIECE; i++) v.at[i] = ::from<IN>(::to<float>(x.at[e + i]));
                if (run + e < HEAD_DIM) ::store<PIECE>(to + e, v);
            }
        }
    }
};

DEVICE void clear(float (*x)[4], int count) {
    #pragma unroll
    for (int i = 0; i < count; i++) {
        #pragma unroll
        for (int e = 0; e < 4; e++) x[i][e] = 0;
    }
}

// The scores of two rows, `query` and the one 8 behind it: of a lane, columns 2t and 2t + 1 of each eight. The factor of the
// exponent is positive; a negative scale changes the sign of the scores. Scores that are added to others or handed on are
// scaled before.
struct Exponent {
    float sign, factor;

    DEVICE explicit Exponent(const Job& j) {
        sign = !HAS_SCORES && j.scale < 0 ? -1.0f : 1.0f;
        factor = HAS_SCORES ? LOG2_E : fabsf((float)j.scale) * LOG2_E;
    }
    // The exponential of a score relative to the largest. The difference is exact where it matters, also of large scores.
    DEVICE float of(float s, float largest) const { return exp2_((s - largest) * factor); }
};

// Whether a query sees a key.
DEVICE bool seen(const Job& j, int query, int key) { return key < (int)j.keys && is_before(j, key, query); }

// Puts `value` in the place of each score of a query that belongs to a key that the query does not see. The lane has two of each
// eight keys, from key `first` on, in row `half` of `s`.
DEVICE void hide(const Job& j, float (*s)[4], int half, int query, int first, float value) {
    #pragma unroll
    for (int i = 0; i < 2 * TILE_EIGHTS; i++) {
        int key = first + i / 2 * 8 + 2 * (int)(threadIdx.x & 3) + i % 2;
        if (!seen(j, query, key)) s[i / 2][2 * half + i % 2] = value;
    }
}

// What is subtracted from the scores. Rows whose scores are all minus infinity have no weight.
DEVICE float base_of(float largest) { return largest == -INFINITY_F ? 0.0f : largest; }

// What the gradients need of a row of scores: the largest and 1 / the sum of the exponentials, which the forward pass saved, and
// the sum of the weights times their gradients.
struct Softmax { float largest, inverse, delta; };

// The gradient of a score: that by its weight, and that of the score that is handed on.
DEVICE float with_gradient(float weight, float distance, float d_after) {
    return AFTER ? fmaf(weight, distance, d_after) : weight * distance;
}

// Whether dropout keeps the weights of a query: bit i for key `first + i`, for the keys of a tile or of a warp.
static_assert((64 % TILE == 0 || TILE == 48) && TILE % 16 == 0, "their bits lie in one word; there is no second tile of 48");
DEVICE u64 kept_of(const Job& j, const Dropout& dropout, i64 pair, int query, int first) {
    return query < (int)j.queries ? dropout.from(row_at(j, pair, query), first) : 0;
}
