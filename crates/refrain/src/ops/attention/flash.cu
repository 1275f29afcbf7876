// Attention of sequences of any length on tensor cores: tiles of one side pass by a block of the other, and scores
// stay in registers (Dao, "FlashAttention-2", 2023). A warp has 16 rows. Constants: IN (dtype of the operands), FORM (the number
// format of products), HEAD_DIM, WARPS (per block), TILE (rows that pass by at a time), MEMORY_BYTES (shared memory of the
// launch), ALIGNED (RUN numbers can be moved in one instruction), CAUSAL.
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
constexpr int STEPS = (HEAD_DIM + STEP - 1) / STEP, WIDTH = STEPS * STEP, EIGHTS = WIDTH / 8;
constexpr int ROWS = WARPS * 16, THREADS = WARPS * 32;
constexpr int TILE_EIGHTS = TILE / 8;
// Distance between rows in shared memory: matrices of 8 rows are then read without bank conflicts.
constexpr int PITCH = WIDTH + RUN;

// Sums and maxima over the four lanes that share a row.
DEVICE float over_row(float x) { return warp_reduce<4>(x, Add()); }
DEVICE float largest_of_row(float x) {
    x = fmaxf(x, __shfl_xor_sync(FULL, x, 1));
    return fmaxf(x, __shfl_xor_sync(FULL, x, 2));
}

// The rows of one head, and how many there are.
struct Head {
    IN* at;
    i64 token;
    int count;

    DEVICE Head(const Heads& x, const Job& j, i64 pair, i64 rows) {
        i64 sequence = pair / j.heads;
        at = reinterpret_cast<IN*>(x.at) + sequence * x.sequence + (pair - sequence * j.heads) * x.head;
        token = x.token;
        count = (int)rows;
    }
    // Copies rows from `first` on to shared memory; zeros behind the last one and behind the last number.
    template <int COUNT> DEVICE void load(Number* tile, int first) const {
        constexpr int RUNS = WIDTH / RUN;
        for (int i = threadIdx.x; i < COUNT * RUNS; i += THREADS) {
            int row = i / RUNS, run = i % RUNS * RUN;
            Number* to = tile + row * PITCH + run;
            bool there = first + row < count && run < HEAD_DIM;
            const IN* from = there ? at + (first + row) * token + run : at;
            if (ALIGNED && sizeof(IN) == sizeof(Number)) {
                copy_async<16>(to, from, there ? 16 : 0);
            } else {
                vec<IN, RUN> v = {};
                if (ALIGNED && there) v = ::load<RUN>(from);
                #pragma unroll
                for (int e = 0; e < RUN; e++) {
                    if (!ALIGNED && there && run + e < HEAD_DIM) v.at[e] = from[e];
                    to[e] = ::from<Number>(::to<float>(v.at[e]));
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
                ::store<2>(rows + (g + h * 8) * PITCH + d * 8 + 2 * t, v);
            }
        }
        __syncwarp();
        for (int i = lane; i < 16 * RUNS; i += 32) {
            int row = i / RUNS, run = i % RUNS * RUN;
            if (first + row >= count || run >= HEAD_DIM) continue;
            IN* to = at + (first + row) * token + run;
            vec<Number, RUN> x = ::load<RUN>(rows + row * PITCH + run);
            vec<IN, RUN> v;
            #pragma unroll
            for (int e = 0; e < RUN; e++) {
                v.at[e] = ::from<IN>(::to<float>(x.at[e]));
                if (!ALIGNED && run + e < HEAD_DIM) to[e] = v.at[e];
            }
            if (ALIGNED) ::store<RUN>(to, v);
        }
    }
};

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

DEVICE void clear(float (*x)[4], int count) {
    #pragma unroll
    for (int i = 0; i < count; i++) {
        #pragma unroll
        for (int e = 0; e < 4; e++) x[i][e] = 0;
    }
}

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

#if FORM == BF16
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

// What is subtracted from the scores. Rows whose scores are all minus infinity have no weight.
DEVICE float base_of(float largest) { return largest == -INFINITY_F ? 0.0f : largest; }

// What the gradients need of a row of scores: the largest, 1 / the sum of the exponentials, and the sum of the weights
// times their gradients. It is computed again in the backward pass, so that this does not depend on which kernel ran the
// forward pass.
struct Softmax { float largest, inverse, delta; };

// Whether dropout keeps weights: bit c of the row that four lanes share for key c of a tile, from weight `first` on. Each
// lane draws every fourth block of words.
DEVICE u64 kept_of_row(const Dropout& dropout, i64 first) {
    int skip = (int)(first & 3);
    u64 kept = 0;
    #pragma unroll 1
    for (int at = 4 * (threadIdx.x & 3) - skip; at < TILE; at += 16) {
        u64 four = dropout.bits<4>(first + at);
        kept |= at < 0 ? four >> -at : four << at;
    }
    kept |= __shfl_xor_sync(FULL, kept, 1);
    return kept | __shfl_xor_sync(FULL, kept, 2);
}

// The same of one query for the 16 keys of a warp.
DEVICE u32 kept_of_query(const Dropout& dropout, i64 first) {
    int skip = (int)(first & 3);
    u32 kept = 0;
    #pragma unroll 1
    for (int at = -skip; at < 16; at += 4) {
        u32 four = dropout.bits<4>(first + at);
        kept |= at < 0 ? four >> -at : four << at;
    }
    return kept;
}
