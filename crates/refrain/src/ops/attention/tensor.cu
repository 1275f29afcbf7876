// Attention of short sequences on tensor cores: a warp has a sequence's head for itself, and scores stay in registers.
// Constants: IN (the operands' dtype), FORM (one of those below), HEAD_DIM, QUERY_BLOCKS (sixteens of queries),
// KEY_EIGHTS (eights of keys), WARPS (of a block), MEMORY_BYTES (the shared memory that the launch gives), ALIGNED (four
// numbers can be moved at once), CAUSAL.
//
// A fragment is 16 x 8 numbers of a left operand (rows g and g + 8, columns 2t and 2t + 1 of lane 4g + t), 8 x 8 of a
// right one (rows 2t and 2t + 1, column g) or 16 x 8 of a product (rows g and g + 8, columns 2t and 2t + 1). So what a
// product leaves in a lane is what the lane needs of a left operand. Columns t and t + 4 do as well, if they do on both
// sides.

// f32 as the sum of two TF32 numbers; numbers rounded to TF32; numbers rounded to bf16.
#define SPLIT 0
#define TF32 1
#define BRAINS 2

// TF32 numbers that a number is made of, and products of those that count.
constexpr int PARTS = FORM == SPLIT ? 2 : 1;
constexpr int TERMS = FORM == SPLIT ? 3 : 1;
// Fragments that are multiplied at once.
constexpr int UNIT = FORM == BRAINS ? 2 : 1;

constexpr int EIGHTS = (HEAD_DIM + 7) / 8;
// Fragments of a head, in multiplications.
constexpr int STEPS = (EIGHTS + UNIT - 1) / UNIT;
constexpr int RUNS = EIGHTS == 1 ? 2 : EIGHTS == 2 ? 4 : EIGHTS <= 4 ? 8 : 16;
// Numbers from a row in shared memory to the next: lanes meet in no bank, whichever way fragments lie.
constexpr int PITCH = EIGHTS * 8 + 4;
// Few sums leave room for one for each term, so that multiplications don't wait for each other.
constexpr int CHAINS = EIGHTS <= 2 ? TERMS : 1;

constexpr float LOG2_E = 1.4426950408889634f;

// Numbers from a head's rows to those of the next, so that threads that bring neighbouring heads meet in no bank.
template <int ROWS> struct Tile { static constexpr int SIZE = (ROWS * PITCH + 31) / 32 * 32 + EIGHTS * 8 % 32; };

// What a thread moves between global and shared memory: a run of four numbers of each row, of one of the block's heads.
// Neighbouring threads have neighbouring runs, then heads.
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

    // As an address of global memory, so that the compiler moves a run at once.
    DEVICE IN* place(const Heads& x) const {
        i64 at = sequence * x.sequence + head * x.head + (run * 4 < HEAD_DIM ? run * 4 : 0);
        return reinterpret_cast<IN*>(__cvta_global_to_generic(x.at + at * (i64)sizeof(IN)));
    }

    // Rows 0 to `count` of heads to shared memory, and zeros after.
    template <int ROWS> DEVICE void bring(float* tiles, const Heads& x, int count) const {
        constexpr int STEP = 32 / RUNS, EACH = (ROWS + STEP - 1) / STEP, BATCH = EACH < 8 ? EACH : 8;
        constexpr bool DIRECT = ALIGNED && sizeof(IN) == 4;
        if (run >= 2 * EIGHTS) return;
        i64 stride = x.token * STEP;
        const IN* from = place(x) + row * x.token;
        float* to = tiles + slot * Tile<ROWS>::SIZE + row * PITCH + run * 4;
        // How many of the rows from this thread's first on there are, and how many there is room for.
        int rows = (there && run * 4 < HEAD_DIM ? count : 0) - row, room = ROWS - row;
        // Loads of many batches at once would want more registers than there are. A single one goes together with those of
        // other operands.
        #pragma unroll (DIRECT || EACH == BATCH ? EACH : 1)
        for (int begin = 0; begin < EACH; begin += BATCH) {
            vec<IN, 4> v[BATCH] = {};
            #pragma unroll
            for (int i = 0; i < BATCH; i++) {
                int r = (begin + i) * STEP;
                if (begin + i >= EACH) break;
                if (DIRECT) {
                    if (ROWS % STEP == 0 || r < room) copy_async<16>(to + r * PITCH, from, r < rows ? 16 : 0);
                } else if (r < rows) {
                    if (ALIGNED) v[i] = load<4>(from);
                    #pragma unroll
                    for (int e = 0; e < 4; e++) if (!ALIGNED && run * 4 + e < HEAD_DIM) v[i].at[e] = from[e];
                }
                from += stride;
            }
            #pragma unroll
            for (int i = 0; i < BATCH; i++) {
                int r = (begin + i) * STEP;
                if (begin + i >= EACH) break;
                vec<float, 4> y;
                #pragma unroll
                for (int e = 0; e < 4; e++) y.at[e] = ::to<float>(v[i].at[e]);
                if (!DIRECT && (ROWS % STEP == 0 || r < room)) store<4>(to + r * PITCH, y);
            }
        }
    }

    // The way back.
    template <int ROWS> DEVICE void give(const Heads& x, const float* tiles, int count) const {
        constexpr int STEP = 32 / RUNS, EACH = (ROWS + STEP - 1) / STEP;
        if (!there || run * 4 >= HEAD_DIM) return;
        i64 stride = x.token * STEP;
        IN* to = place(x) + row * x.token;
        const float* from = tiles + slot * Tile<ROWS>::SIZE + row * PITCH + run * 4;
        int rows = count - row;
        #pragma unroll
        for (int i = 0; i < EACH; i++) {
            if (i * STEP < rows) {
                vec<float, 4> y = load<4>(from + i * STEP * PITCH);
                if (ALIGNED) {
                    vec<IN, 4> v;
                    #pragma unroll
                    for (int e = 0; e < 4; e++) v.at[e] = ::from<IN>(y.at[e]);
                    store<4>(to, v);
                } else {
                    #pragma unroll
                    for (int e = 0; e < 4; e++) if (run * 4 + e < HEAD_DIM) to[e] = ::from<IN>(y.at[e]);
                }
            }
            to += stride;
        }
    }
};

// All that was brought is there, for all threads.
DEVICE void arrive() {
    commit();
    wait_for_copies<0>();
    __syncthreads();
}

struct Left { u32 at[PARTS][4]; };
struct Right { u32 at[PARTS][2]; };

// To TF32: f16 is that as it is; what cutting off takes of numbers computed here is made up for on the average.
template <bool READ> DEVICE u32 rounded(float x) {
    if (!READ) return __float_as_uint(fmaf(x, 0x1.8p-12f, x));
    return sizeof(IN) == 2 ? __float_as_uint(x) : round_tf32(x);
}

// A left operand of UNIT fragments: of fragment u, x(u, e) is number e of a lane, rows first.
template <bool READ, typename X> DEVICE Left left(X x) {
    Left a;
    #pragma unroll
    for (int i = 0; i < 4; i++) {
        if (FORM == BRAINS) {
            int u = i / 2 * (UNIT - 1), e = i % 2 * 2;
            a.at[0][i] = pack_brains(x(u, e), x(u, e + 1));
        } else {
            float y = x(0, i % 2 * 2 + i / 2);
            if (FORM == SPLIT) split_tf32(y, a.at[0][i], a.at[PARTS - 1][i]);
            else a.at[0][i] = rounded<READ>(y);
        }
    }
    return a;
}

// A right operand of UNIT fragments.
template <typename Y> DEVICE Right right(Y y) {
    Right b;
    #pragma unroll
    for (int i = 0; i < 2; i++) {
        if (FORM == BRAINS) b.at[0][i] = pack_brains(y(i * (UNIT - 1), 0), y(i * (UNIT - 1), 1));
        else if (FORM == SPLIT) split_tf32(y(0, i), b.at[0][i], b.at[PARTS - 1][i]);
        else b.at[0][i] = rounded<true>(y(0, i));
    }
    return b;
}

// Adds a term of a product: small ones come first.
DEVICE void multiply(float* d, const Left& a, const Right& b, int term) {
    const u32* x = a.at[TERMS > 1 && term == 0 ? PARTS - 1 : 0];
    const u32* y = b.at[TERMS > 1 && term == 1 ? PARTS - 1 : 0];
    if (FORM == BRAINS) multiply_brains(d, x, y);
    else multiply_tf32(d, x[0], x[1], x[2], x[3], y[0], y[1]);
}

// A product's fragment, in several sums.
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
        if (FORM != SPLIT || term % CHAINS < CHAINS - 1) {
            multiply(d, a, b, term);
            return;
        }
        // Tensor cores cut their sums off; what is added up here is rounded.
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

// Numbers of fragment `eight` along a row of shared memory. Not all rows have UNIT more fragments.
DEVICE float along(const float* row, int eight, int e, int t) { return eight < EIGHTS ? row[eight * 8 + t + 4 * e] : 0.0f; }

DEVICE void put_pair(float* to, float x, float y) {
    vec<float, 2> v = {{x, y}};
    store<2>(to, v);
}

// A lane's share of 16 rows, x(d, e) of fragment d, to rows `row` and `row + 8` on.
template <typename X> DEVICE void put_rows(float* rows, int row, int t, X x) {
    #pragma unroll
    for (int d = 0; d < EIGHTS; d++) {
        #pragma unroll
        for (int h = 0; h < 2; h++) put_pair(rows + (row + h * 8) * PITCH + d * 8 + 2 * t, x(d, 2 * h), x(d, 2 * h + 1));
    }
}

DEVICE float exp2_(float x) {
    float e;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(x));
    return e;
}

// What scores of a row lose in the exponent, the largest of them times the scale. A fused product brings back what that was
// rounded by, which is much where it has no digits behind the point: there scores lose the largest beforehand.
DEVICE float shift_of(float largest, float scale) { return largest * scale; }
DEVICE bool is_large(float shift) { return fabsf(shift) > 8388608.0f; }

// Whether there is a key for a query to see. Only the last eight of keys may be less than eight.
DEVICE bool seen(const Job& j, int key, int query, int eight) {
    if (eight >= KEY_EIGHTS) return false;
    return (eight < KEY_EIGHTS - 1 || key < (int)j.keys) && (!CAUSAL || key <= query);
}
