// What the kernels of attention share: scores never leave the chip. LANES neighbours of a warp share a row (a query, or a
// key where its gradient is gathered) and hold EACH of its numbers each, of ROWS rows, so that what is read from shared
// memory serves as many. Constants: IN (the operands' dtype), COMPUTE, HEAD_DIM, LANES, EACH (LANES * EACH numbers cover
// a head), ROWS, ALIGNED (16 bytes of COMPUTE, as many numbers of IN, can be moved at once), CAUSAL.

constexpr int VEC = 16 / (int)sizeof(COMPUTE);
constexpr int PADDED = LANES * EACH;
// Keys or queries that are taken together.
constexpr int CHUNK = 4;
// Runs of numbers that a thread has on their way to shared memory.
constexpr int BATCH = 4;

DEVICE IN* row_of(const Heads& x, const Job& j, i64 pair, int row) {
    i64 sequence = pair / j.heads, head = pair - sequence * j.heads;
    return reinterpret_cast<IN*>(x.at) + sequence * x.sequence + row * x.token + head * x.head;
}

// VEC numbers of a row from `d` on; zeros beyond its end.
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

// Elements from the rows of one pair to those of the next: a shift, so that lanes of different pairs meet in no bank.
DEVICE int slot_size(int rows) { return (rows + CHUNK - 1) / CHUNK * CHUNK * PADDED + LANES * VEC; }

// Brings rows `first` to `first + count` of `slots` pairs, from `first_pair` on, times a factor to shared memory, and zeros
// up to whole chunks. Neighbouring threads take neighbouring heads.
DEVICE void bring(COMPUTE* tiles, int size, const Heads& x, const Job& j, i64 first_pair, int slots, int first, int count,
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

// A lane's share of a row: every LANES-th run of VEC.
DEVICE int place(int run, int lane) { return (run * LANES + lane) * VEC; }

DEVICE void take(COMPUTE* x, const IN* row, int lane, COMPUTE factor) {
    #pragma unroll
    for (int r = 0; r < EACH / VEC; r++) {
        vec<COMPUTE, VEC> v = piece(row, place(r, lane));
        #pragma unroll
        for (int e = 0; e < VEC; e++) x[r * VEC + e] = v.at[e] * factor;
    }
}

// The lane's part of a row in shared memory.
DEVICE void look(COMPUTE* x, const COMPUTE* row, int lane) {
    #pragma unroll
    for (int r = 0; r < EACH / VEC; r++) {
        vec<COMPUTE, VEC> v = load<VEC>(row + place(r, lane));
        #pragma unroll
        for (int e = 0; e < VEC; e++) x[r * VEC + e] = v.at[e];
    }
}

DEVICE void give(IN* row, const COMPUTE* x, int lane, COMPUTE factor) {
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

// The lane's part of a product of rows.
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

// The softmax of a row of scores, of which the backward pass needs `delta`, the sum of probabilities times their gradients.
// It is computed anew: where tensor cores did the forward pass, scores were others in the last digits, which decide where
// scores are large. Queries are multiplied by the scale wherever they meet keys, so that their scores stay the same.
struct Softmax {
    COMPUTE largest, inverse, delta;

    DEVICE void begin() {
        largest = limits<COMPUTE>::lowest();
        inverse = delta = 0;
    }
    // A key's score and the gradient of its probability. Until the end `inverse` is the sum itself.
    DEVICE void add(COMPUTE s, COMPUTE d) {
        // Has no weight.
        if (s == limits<COMPUTE>::lowest()) return;
        COMPUTE e = exp_(-abs_(s - largest));
        bool larger = s > largest;
        // 1, or NaN of infinity.
        COMPUTE p = larger ? (COMPUTE)1 + (s - s) : e, keep = larger ? e : (COMPUTE)1;
        largest = larger ? s : largest;
        inverse = inverse * keep + p;
        delta = delta * keep + p * d;
    }
    DEVICE void end() {
        inverse = (COMPUTE)1 / inverse;
        delta *= inverse;
    }
    DEVICE COMPUTE probability(COMPUTE s) const { return exp_(s - largest) * inverse; }
};

DEVICE void clear(COMPUTE* x) {
    #pragma unroll
    for (int e = 0; e < EACH; e++) x[e] = 0;
}

// The rows that a thread works on: of which of the block's pairs, and which of the pair's `count` rows. Threads without
// a row compute along with row 0, so that whole warps meet.
struct Rows {
    i64 pair;
    int slot, row, lane;
    // How many there are.
    int there;
    // The first of the block's rows, and the one after its last.
    int first, end;

    // Row i, or the last there is.
    DEVICE int at(int i) const { return row + max(min(i, there - 1), 0); }
};

// Pairs that the block has.
DEVICE int slots_of(const Job& j, i64 first_pair) { return (int)min(j.together, j.pairs - first_pair); }

DEVICE Rows locate(const Job& j, i64 count) {
    Rows r;
    int group = threadIdx.x / LANES, groups = blockDim.x / LANES, units = ((int)count + ROWS - 1) / ROWS;
    u32 parts = (u32)j.parts;
    i64 first_pair = (i64)(blockIdx.x / parts) * j.together;
    r.lane = threadIdx.x % LANES;
    r.first = (int)(blockIdx.x % parts) * groups * ROWS;
    r.end = min((int)count, r.first + groups * ROWS);
    r.slot = j.together > 1 ? group / units : 0;
    r.row = r.first + (group - r.slot * units * (j.together > 1)) * ROWS;
    bool there = r.slot < slots_of(j, first_pair) && r.row < count;
    if (!there) r.slot = r.row = 0;
    r.there = there ? min(ROWS, (int)count - r.row) : 0;
    r.pair = first_pair + r.slot;
    return r;
}
