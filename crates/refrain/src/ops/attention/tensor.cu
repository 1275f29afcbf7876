// Attention for short sequences on tensor cores: each warp processes one head of a sequence, and scores stay in
// registers. Constants: IN (dtype of the operands), FORM (the number format of products), HEAD_DIM, QUERY_BLOCKS (groups of 16
// queries), KEY_EIGHTS (groups of 8 keys), WARPS (per block), TILE_BYTES (shared memory without that for scores), ALIGNED
// (four numbers can be moved in one instruction), CAUSAL.
//
// A fragment is 16 x 8 numbers of a left operand (rows g and g + 8, columns 2t and 2t + 1 in lane 4g + t), 8 x 8 of a
// right one (rows 2t and 2t + 1, column g), or 16 x 8 of a product (rows g and g + 8, columns 2t and 2t + 1). So a
// lane holds the same numbers of a product as it needs of a left operand. Columns t and t + 4 work as well, if both
// operands use them.

// The numbers in shared memory.
#if FORM == BF16
typedef bf16_t Number;
#else
typedef float Number;
#endif

// Fragments per multiplication instruction.
constexpr int UNIT = FORM == BF16 ? 2 : 1;

constexpr int EIGHTS = (HEAD_DIM + 7) / 8;
// Multiplication steps for the fragments of a head.
constexpr int STEPS = (EIGHTS + UNIT - 1) / UNIT;
// Numbers of a row in shared memory, and the distance between rows, which avoids bank conflicts for every orientation of the
// fragments. Of heads of up to four numbers of 32 bits, a fragment has half: the rest of a left operand is zero, and the columns of
// a right one that nobody uses begin the next row.
constexpr int WIDTH = FORM != BF16 && HEAD_DIM <= 4 ? 4 : EIGHTS * 8;
constexpr int PITCH = FORM == BF16 ? (EIGHTS | 1) * 8 : WIDTH == 4 ? 4 : WIDTH + 4;
// Threads that copy a row, four numbers each.
constexpr int RUNS = WIDTH == 4 ? 1 : EIGHTS == 1 ? 2 : EIGHTS == 2 ? 4 : EIGHTS <= 4 ? 8 : 16;
// With few sums, each term has its own, so that multiplications do not wait for one another.
constexpr int CHAINS = EIGHTS <= 2 ? TERMS : 1;

// Distance between heads in shared memory. Threads that copy neighbouring heads then use different banks.
template <int ROWS> struct Tile {
    static constexpr int BYTES =
        (ROWS * PITCH * (int)sizeof(Number) + 127) / 128 * 128 + EIGHTS * 8 * (int)sizeof(Number) % 128;
    static constexpr int SIZE = BYTES / (int)sizeof(Number);
};

// Four numbers that are loaded at once.
union Four {
    typedef vec<u32, (int)sizeof(IN)> Bits;
    Bits bits;
    IN at[4];
};

// What a thread copies between global and shared memory: a run of four numbers of each row, in one head of the block.
// Neighbouring threads have neighbouring runs, then neighbouring heads.
struct Mover {
    i64 sequence;
    int slot, head, run, row;
    bool there;

    DEVICE Mover(const Job& j, i64 first_pair) {
        run = threadIdx.x % RUNS;
        slot = threadIdx.x / RUNS % WARPS;
        row = threadIdx.x / (RUNS * WARPS);
        u32 pair = (u32)first_pair + slot;
        there = pair < (u64)j.pairs;
        if (!there) pair = (u32)first_pair;
        u32 at = pair / (u32)j.heads;
        sequence = at;
        head = (int)(pair - at * (u32)j.heads);
    }

    // An address of global memory, so that the compiler moves a run in one instruction.
    DEVICE IN* place(const Heads& x) const {
        i64 at = sequence * x.sequence + head * x.head + (run * 4 < HEAD_DIM ? run * 4 : 0);
        return reinterpret_cast<IN*>(__cvta_global_to_generic(x.at + at * (i64)sizeof(IN)));
    }

    // Copies rows 0 to `count` of the heads to shared memory, and fills the rest with zeros.
    template <int ROWS> DEVICE void load_tile(Number* tiles, const Heads& x, int count) const {
        constexpr int STEP = 32 / RUNS, EACH = (ROWS + STEP - 1) / STEP, BATCH = EACH < 8 ? EACH : 8;
        constexpr bool DIRECT = ALIGNED && sizeof(IN) == sizeof(Number);
        constexpr int BYTES = 4 * (int)sizeof(Number);
        if (run * 4 >= WIDTH) return;
        i64 stride = x.token * STEP;
        const IN* from = place(x) + row * x.token;
        Number* to = tiles + slot * Tile<ROWS>::SIZE + row * PITCH + run * 4;
        // How many rows there are from this thread's first one on, and how many fit.
        int rows = (there && run * 4 < HEAD_DIM ? count : 0) - row, room = ROWS - row;
        // Loading many batches at once would need more registers than there are. A single batch is loaded together
        // with those of other operands.
        #pragma unroll (DIRECT || EACH == BATCH ? EACH : 1)
        for (int begin = 0; begin < EACH; begin += BATCH) {
            Four v[BATCH] = {};
            #pragma unroll
            for (int i = 0; i < BATCH; i++) {
                int r = (begin + i) * STEP;
                if (begin + i >= EACH) break;
                if (DIRECT) {
                    if (ROWS % STEP == 0 || r < room) copy_async<BYTES>(to + r * PITCH, from, r < rows ? BYTES : 0);
                } else if (r < rows) {
                    if (ALIGNED) v[i].bits = *reinterpret_cast<const Four::Bits*>(from);
                    #pragma unroll
                    for (int e = 0; e < 4; e++) if (!ALIGNED && run * 4 + e < HEAD_DIM) v[i].at[e] = from[e];
                }
                from += stride;
            }
            #pragma unroll
            for (int i = 0; i < BATCH; i++) {
                int r = (begin + i) * STEP;
                if (begin + i >= EACH) break;
                vec<Number, 4> y;
                #pragma unroll
                for (int e = 0; e < 4; e++) y.at[e] = ::from<Number>(::to<float>(v[i].at[e]));
                if (!DIRECT && (ROWS % STEP == 0 || r < room)) store<4>(to + r * PITCH, y);
            }
        }
    }

    // Copies back to global memory.
    template <int ROWS> DEVICE void store_tile(const Heads& x, const Number* tiles, int count) const {
        constexpr int STEP = 32 / RUNS, EACH = (ROWS + STEP - 1) / STEP;
        if (!there || run * 4 >= HEAD_DIM) return;
        i64 stride = x.token * STEP;
        IN* to = place(x) + row * x.token;
        const Number* from = tiles + slot * Tile<ROWS>::SIZE + row * PITCH + run * 4;
        int rows = count - row;
        #pragma unroll
        for (int i = 0; i < EACH; i++) {
            if (i * STEP < rows) {
                const Number* at = from + i * STEP * PITCH;
                if (ALIGNED && sizeof(IN) == sizeof(Number)) {
                    store<4>(to, load<4>(reinterpret_cast<const IN*>(at)));
                } else {
                    vec<Number, 4> y = load<4>(at);
                    vec<IN, 4> v;
                    #pragma unroll
                    for (int e = 0; e < 4; e++) v.at[e] = ::from<IN>(::to<float>(y.at[e]));
                    if (ALIGNED) store<4>(to, v);
                    #pragma unroll
                    for (int e = 0; e < 4; e++) if (!ALIGNED && run * 4 + e < HEAD_DIM) to[e] = v.at[e];
                }
            }
            to += stride;
        }
    }
};

// Waits until all copies to shared memory are visible to all threads.
DEVICE void wait_for_tile() {
    commit();
    wait_for_copies<0>();
    __syncthreads();
}

// A left operand of UNIT fragments: x(u, e) is number e of the lane in fragment u, rows first.
template <bool READ, typename X> DEVICE Left left(X x) {
    Left a;
    #pragma unroll
    for (int i = 0; i < 4; i++) {
        if (FORM == BF16) {
            int u = i / 2 * (UNIT - 1), e = i % 2 * 2;
            a.at[0][i] = pack_bf16(x(u, e), x(u, e + 1));
        } else {
            float y = x(0, i % 2 * 2 + i / 2);
            if (FORM == SPLIT_TF32) split_tf32(y, a.at[0][i], a.at[PARTS - 1][i]);
            else a.at[0][i] = rounded<READ>(y);
        }
    }
    return a;
}

// Whether a row fills only half of what is multiplied at once.
constexpr bool HALF = WIDTH == 4 || FORM == BF16 && EIGHTS == 1;

// Adds a term of the product of rows with rows.
DEVICE void multiply_along(float* d, const Left& a, const Right& b, int term) {
    const u32* x = a.at[TERMS > 1 && term == 0 ? PARTS - 1 : 0];
    const u32* y = b.at[TERMS > 1 && term == 1 ? PARTS - 1 : 0];
    if (HALF && FORM == BF16) multiply_bf16_half(d, x[0], x[1], y[0]);
    else if (HALF) multiply_tf32_half(d, x[0], x[1], y[0]);
    else multiply(d, a, b, term);
}

// The fragment of a product, in several sums.
struct Chains {
    float at[CHAINS][4];

    DEVICE void clear() {
        #pragma unroll
        for (int c = 0; c < CHAINS; c++) {
            #pragma unroll
            for (int e = 0; e < 4; e++) at[c][e] = 0;
        }
    }
    DEVICE void add(const Left& a, const Right& b, int term) {
        float* d = at[term % CHAINS];
        if (FORM != SPLIT_TF32 || term % CHAINS < CHAINS - 1) {
            multiply(d, a, b, term);
            return;
        }
        // Tensor cores truncate their sums; these additions round.
        float part[4] = {0, 0, 0, 0};
        multiply(part, a, b, term);
        #pragma unroll
        for (int e = 0; e < 4; e++) d[e] += part[e];
    }
    DEVICE float sum(int e) const {
        float x = at[0][e];
        #pragma unroll
        for (int c = 1; c < CHAINS; c++) x += at[c][e];
        return x;
    }
};

#if FORM == BF16
// Columns 2t and 2t + 1 of group `eight` of a row in shared memory. Some rows have less than UNIT more groups.
DEVICE u32 along(const Number* row, int eight, int t) {
    return eight < EIGHTS ? *reinterpret_cast<const u32*>(row + eight * 8 + 2 * t) : 0;
}

// 16 rows of a tile from `row` on as a left operand, with their sign changed if `negative`.
DEVICE Left left_rows(const Number* tile, int row, int step, bool negative = false) {
    const int lane = threadIdx.x & 31;
    Left a;
    #pragma unroll
    for (int i = 0; i < 4; i++) {
        u32 x = along(tile + (row + lane / 4 + i % 2 * 8) * PITCH, step * UNIT + i / 2, lane % 4);
        a.at[0][i] = negative ? x ^ 0x80008000 : x;
    }
    return a;
}

// 8 rows from `row` on as columns of a right operand.
DEVICE Right right_rows(const Number* tile, int row, int step) {
    const int lane = threadIdx.x & 31;
    Right b;
    #pragma unroll
    for (int i = 0; i < 2; i++) b.at[0][i] = along(tile + (row + lane / 4) * PITCH, step * UNIT + i, lane % 4);
    return b;
}

// Rows of a right operand: those of UNIT groups of 8 rows from group `eight` on, as far as a tile of ROWS rows has them, of group `d`
// of columns.
template <int ROWS> DEVICE Right right_columns(const Number* tile, int eight, int d) {
    const int row = eight * 8 + (int)(threadIdx.x & 15);
    Right b;
    load_two_transposed(b.at[0], tile + (ROWS % 16 == 0 ? row : min(row, ROWS - 1)) * PITCH + d * 8);
    if (ROWS % 16 != 0 && eight * 8 + 8 >= ROWS) b.at[0][1] = 0;
    return b;
}

DEVICE void put_pair(Number* to, float x, float y) { *reinterpret_cast<u32*>(to) = pack_bf16(x, y); }
#else
// The same of numbers of 32 bits.

// A right operand of one fragment.
template <typename Y> DEVICE Right right(Y y) {
    Right b;
    #pragma unroll
    for (int i = 0; i < 2; i++) {
        if (FORM == SPLIT_TF32) split_tf32(y(i), b.at[0][i], b.at[PARTS - 1][i]);
        else b.at[0][i] = rounded<true>(y(i));
    }
    return b;
}

// Column t or t + 4 of group `eight` of a row in shared memory.
DEVICE float along(const Number* row, int eight, int e, int t) {
    return eight * 8 + 4 * e < WIDTH ? row[eight * 8 + t + 4 * e] : 0.0f;
}

DEVICE Left left_rows(const Number* tile, int row, int step, bool negative = false) {
    const int g = (int)(threadIdx.x & 31) / 4, t = (int)threadIdx.x % 4;
    return left<true>([&](int, int e) {
        float x = along(tile + (row + g + e / 2 * 8) * PITCH, step, e % 2, t);
        return negative ? -x : x;
    });
}

DEVICE Right right_rows(const Number* tile, int row, int step) {
    const int g = (int)(threadIdx.x & 31) / 4, t = (int)threadIdx.x % 4;
    return right([&](int e) { return along(tile + (row + g) * PITCH, step, e, t); });
}

template <int ROWS> DEVICE Right right_columns(const Number* tile, int eight, int d) {
    const int g = (int)(threadIdx.x & 31) / 4, t = (int)threadIdx.x % 4;
    return right([&](int e) { return tile[(eight * 8 + 2 * t + e) * PITCH + d * 8 + g]; });
}
#endif

DEVICE void put_pair(float* to, float x, float y) {
    vec<float, 2> v = {{x, y}};
    store<2>(to, v);
}

// Stores the lane's part of 16 rows: x(d, e) of fragment d, to rows from `row` and from `row + 8`.
template <typename X> DEVICE void put_rows(Number* rows, int row, int t, X x) {
    #pragma unroll
    for (int d = 0; d < EIGHTS; d++) {
        #pragma unroll
        for (int h = 0; h < 2; h++) {
            if (WIDTH == 4 && t > 1) continue;
            put_pair(rows + (row + h * 8) * PITCH + d * 8 + 2 * t, x(d, 2 * h), x(d, 2 * h + 1));
        }
    }
}

// What is subtracted from the scores of a row in the exponent: the largest score times the scale. A fused multiply-add
// would bring back the rounding error of this product. That error is large if the product has no digits behind the
// point; then the maximum is subtracted from the scores beforehand.
DEVICE float shift_of(float largest, float scale) { return largest * scale; }
DEVICE bool is_large(float shift) { return fabsf(shift) > 8388608.0f; }

// Whether there is a key of group `eight`. Only the last group can have fewer than eight.
DEVICE bool is_key(const Job& j, int key, int eight) {
    return eight < KEY_EIGHTS - 1 || eight == KEY_EIGHTS - 1 && key < (int)j.keys;
}

// Whether a query sees a key of group `eight`.
DEVICE bool seen(const Job& j, int key, int query, int eight) { return is_key(j, key, eight) && is_before(j, key, query); }

// Whether dropout keeps the weights of 16 queries: lanes 2i and 2i + 1 have those of query `first + i`, bit c for key c.
DEVICE u64 kept_of_queries(const Job& j, const Dropout& dropout, i64 pair, int first) {
    const int query = first + (int)(threadIdx.x & 31) / 2;
    return query < (int)j.queries ? dropout.from(row_at(j, pair, query), 0) : 0;
}
