// What the attention kernels share. Scores never leave the chip. LANES neighbouring threads of a warp share a row: a
// query, or a key when its gradient is accumulated. Each of them holds EACH numbers of each of ROWS rows, so that one
// read from shared memory serves several rows. Constants: IN (dtype of the operands), COMPUTE, HEAD_DIM, LANES, EACH
// (LANES * EACH numbers cover a head), ROWS, ALIGNED (16 bytes of COMPUTE, and as many numbers of IN, can be moved in
// one instruction), CAUSAL.

constexpr int VEC = 16 / (int)sizeof(COMPUTE);
constexpr int PADDED = LANES * EACH;
// Keys or queries per iteration.
constexpr int CHUNK = 4;
// Runs of VEC numbers that a thread has in flight to shared memory.
constexpr int BATCH = 4;

DEVICE IN* row_of(const Heads& x, const Job& j, i64 pair, int row) {
    i64 sequence = pair / j.heads, head = pair - sequence * j.heads;
    return reinterpret_cast<IN*>(x.at) + sequence * x.sequence + row * x.token + head * x.head;
}

// VEC numbers of a row, from `d` on; zeros beyond its end.
DEVICE vec<COMPUTE, VEC> piece(const IN* row, int d) {
    vec<COMPUTE, VEC> x;
    if (ALIGNED && d < HEAD_DIM) {
        vec<IN, VEC> v = load<VEC>(row + d);
        #pragma unroll
        for (int e = 0; e < VEC; e++) x.at[e] = to<COMPUTE>(v.at[e]);
    } else {
        #pragma unroll
        for (int e = 0; e < VEC; e++) x.at[e] = d + e < HEAD_DIM ? to<COMPUTE>(row[d + e]) : (COMPUTE)0;
    }
    return x;
}

// Elements from the rows of one pair to those of the next. The padding puts lanes of different pairs on different
// banks.
DEVICE int slot_size(int rows) { return (rows + CHUNK - 1) / CHUNK * CHUNK * PADDED + LANES * VEC; }

// Copies rows `first` to `first + count` of `slots` pairs, from `first_pair` on, times a factor to shared memory, and
// fills up to whole chunks with zeros. Neighbouring threads copy neighbouring heads.
DEVICE void load_tile(COMPUTE* tiles, int size, const Heads& x, const Job& j, i64 first_pair, int slots, int first, int count,
                  COMPUTE factor = (COMPUTE)1) {
    constexpr int RUNS = PADDED / VEC;
    int heads = (int)j.heads, padded = (count + CHUNK - 1) / CHUNK * CHUNK, total = padded * slots * RUNS;
    i64 sequence = first_pair / j.heads;
    int head = (int)(first_pair - sequence * j.heads);
    const IN* base = reinterpret_cast<const IN*>(x.at) + sequence * x.sequence + first * x.token;
    for (int begin = threadIdx.x; begin < total; begin += BATCH * blockDim.x) {
        vec<COMPUTE, VEC> v[BATCH];
        int to[BATCH];
        #pragma unroll
        for (int b = 0; b < BATCH; b++) {
            int i = begin + b * (int)blockDim.x;
            int run = i % RUNS, line = i / RUNS, row = line / slots, slot = line - row * slots;
            to[b] = i < total ? slot * size + row * PADDED + run * VEC : -1;
            if (i < total && row < count) {
                int at = head + slot, over = at / heads;
                v[b] = piece(base + over * x.sequence + row * x.token + (at - over * heads) * x.head, run * VEC);
                #pragma unroll
                for (int e = 0; e < VEC; e++) v[b].at[e] *= factor;
            } else {
                #pragma unroll
                for (int e = 0; e < VEC; e++) v[b].at[e] = 0;
            }
        }
        #pragma unroll
        for (int b = 0; b < BATCH; b++) if (to[b] >= 0) store<VEC>(tiles + to[b], v[b]);
    }
}

// The runs of VEC numbers that belong to a lane: every LANES-th one.
DEVICE int place(int run, int lane) { return (run * LANES + lane) * VEC; }

DEVICE void take(COMPUTE* x, const IN* row, int lane, COMPUTE factor) {
    #pragma unroll
    for (int r = 0; r < EACH / VEC; r++) {
        vec<COMPUTE, VEC> v = piece(row, place(r, lane));
        #pragma unroll
        for (int e = 0; e < VEC; e++) x[r * VEC + e] = v.at[e] * factor;
    }
}

// Loads the lane's part of a row from shared memory.
DEVICE void load_row(COMPUTE* x, const COMPUTE* row, int lane) {
    #pragma unroll
    for (int r = 0; r < EACH / VEC; r++) {
        vec<COMPUTE, VEC> v = load<VEC>(row + place(r, lane));
        #pragma unroll
        for (int e = 0; e < VEC; e++) x[r * VEC + e] = v.at[e];
    }
}

DEVICE void store_tile(IN* row, const COMPUTE* x, int lane, COMPUTE factor) {
    #pragma unroll
    for (int r = 0; r < EACH / VEC; r++) {
        int d = place(r, lane);
        if (ALIGNED) {
            vec<IN, VEC> v;
            #pragma unroll
            for (int e = 0; e < VEC; e++) v.at[e] = from<IN>(x[r * VEC + e] * factor);
            if (d < HEAD_DIM) store<VEC>(row + d, v);
        } else {
            #pragma unroll
            for (int e = 0; e < VEC; e++) if (d + e < HEAD_DIM) row[d + e] = from<IN>(x[r * VEC + e] * factor);
        }
    }
}

// The lane's part of the inner product of two rows.
DEVICE COMPUTE dot(const COMPUTE* x, const COMPUTE* y) {
    COMPUTE sum = 0;
    #pragma unroll
    for (int e = 0; e < EACH; e++) sum += x[e] * y[e];
    return sum;
}

DEVICE void add_times(COMPUTE* x, COMPUTE factor, const COMPUTE* y) {
    #pragma unroll
    for (int e = 0; e < EACH; e++) x[e] += factor * y[e];
}

DEVICE COMPUTE row_sum(COMPUTE x) { return warp_reduce<LANES>(x, Add()); }

// 1 / the sum of the exponentials of a row. Rows without weight have output 0 and gradient 0 if scores are added, which may be a mask.
DEVICE COMPUTE inverse_of(COMPUTE total) { return BEFORE && total == 0 ? (COMPUTE)0 : (COMPUTE)1 / total; }

// The softmax of a row of scores. The backward pass also needs `delta`, the sum of the probabilities times their
// gradients. The softmax is recomputed here: if tensor cores did the forward pass, their scores differ in the last
// digits, which matter for large scores. Queries are always multiplied by the scale before they meet keys, so that
// the scores stay the same.
struct Softmax {
    COMPUTE largest, inverse, delta;

    DEVICE void begin() {
        largest = limits<COMPUTE>::lowest();
        inverse = delta = 0;
    }
    // Adds the score of a key and the gradient of its probability. Until the end, `inverse` holds the sum itself.
    DEVICE void add(COMPUTE s, COMPUTE d) {
        // Such a key has no weight.
        if (s == limits<COMPUTE>::lowest()) return;
        COMPUTE e = exp_(-abs_(s - largest));
        bool larger = s > largest;
        // This is 1, or NaN if s is infinite.
        COMPUTE p = larger ? (COMPUTE)1 + (s - s) : e, keep = larger ? e : (COMPUTE)1;
        largest = larger ? s : largest;
        inverse = inverse * keep + p;
        delta = delta * keep + p * d;
    }
    DEVICE void end() {
        inverse = inverse_of(inverse);
        if (BEFORE && inverse == 0) largest = 0;
        delta *= inverse;
    }
    DEVICE COMPUTE probability(COMPUTE s) const { return exp_(s - largest) * inverse; }
};

// The first `count` of CHUNK neighbouring scores; `count` is a multiple of SCORE_VEC.
DEVICE void load_scores(COMPUTE* x, const IN* from, int count) {
    #pragma unroll
    for (int c = 0; c < CHUNK; c += SCORE_VEC) {
        vec<IN, SCORE_VEC> v = {};
        if (c < count) v = load<SCORE_VEC>(from + c);
        #pragma unroll
        for (int e = 0; e < SCORE_VEC; e++) x[c + e] = to<COMPUTE>(v.at[e]);
    }
}

DEVICE void store_scores(IN* to, const COMPUTE* x, int count) {
    #pragma unroll
    for (int c = 0; c < CHUNK; c += SCORE_VEC) {
        vec<IN, SCORE_VEC> v;
        #pragma unroll
        for (int e = 0; e < SCORE_VEC; e++) v.at[e] = from<IN>(x[c + e]);
        if (c < count) store<SCORE_VEC>(to + c, v);
    }
}

DEVICE void clear(COMPUTE* x) {
    #pragma unroll
    for (int e = 0; e < EACH; e++) x[e] = 0;
}

// The rows that a thread works on: which pair of the block, and which of its `count` rows. A thread without a row
// computes row 0 again, so that whole warps stay together.
struct Rows {
    i64 pair;
    int slot, row, lane;
    // How many rows the thread has.
    int there;
    // The first row of the block, and the one after its last.
    int first, end;

    // Row i, or the last one if there are fewer.
    DEVICE int at(int i) const { return row + max(min(i, there - 1), 0); }
};

// How many pairs the block has.
DEVICE int slots_of(const Job& j, i64 first_pair) { return (int)min(j.pairs_per_block, j.pairs - first_pair); }

DEVICE Rows locate(const Job& j, i64 count) {
    Rows r;
    int group = threadIdx.x / LANES, groups = blockDim.x / LANES, units = ((int)count + ROWS - 1) / ROWS;
    u32 parts = (u32)j.parts;
    i64 first_pair = (i64)(blockIdx.x / parts) * j.pairs_per_block;
    r.lane = threadIdx.x % LANES;
    r.first = (int)(blockIdx.x % parts) * groups * ROWS;
    r.end = min((int)count, r.first + groups * ROWS);
    r.slot = j.pairs_per_block > 1 ? group / units : 0;
    r.row = r.first + (group - r.slot * units * (j.pairs_per_block > 1)) * ROWS;
    bool there = r.slot < slots_of(j, first_pair) && r.row < count;
    if (!there) r.slot = r.row = 0;
    r.there = there ? min(ROWS, (int)count - r.row) : 0;
    r.pair = first_pair + r.slot;
    return r;
}
