// What the kernels of attention share: scores never leave the chip. LANES neighbours of a warp share a row (a query, or a
// key where its gradient is gathered) and hold EACH of its numbers each. Constants: IN (the operands' dtype), COMPUTE,
// HEAD_DIM, LANES, EACH (LANES * EACH numbers cover a head), ALIGNED (16 bytes of COMPUTE, as many numbers of IN, can be
// moved at once), CAUSAL.

constexpr int VEC = 16 / (int)sizeof(COMPUTE);
constexpr int PADDED = LANES * EACH;
// Keys or queries that are taken together.
constexpr int CHUNK = 4;

struct Heads {
    // Where the first element is; elements from a sequence, a token and a head to the next.
    u64 at;
    i64 sequence, token, head;
};

struct Job {
    Heads q, k, v, d_o;
    // [sequences, tokens, heads, HEAD_DIM] without holes.
    u64 o, dq, dk, dv;
    // [sequences, heads, queries]: log-sum-exps of the rows of scores, and sums of probabilities times their gradients.
    u64 sums, deltas;
    i64 pairs, heads, queries, keys;
    // Pairs of a sequence and a head that a block takes, blocks that share a pair, rows of the other side at a time.
    i64 together, parts, tile;
    double scale;
};

extern __shared__ __align__(16) unsigned char memory[];

DEVICE const IN* begin(const Heads& x, const Job& j, i64 pair) {
    i64 sequence = pair / j.heads, head = pair - sequence * j.heads;
    return reinterpret_cast<const IN*>(x.at) + sequence * x.sequence + head * x.head;
}

// Row `token` of a result.
DEVICE IN* result(u64 at, const Job& j, i64 tokens, i64 pair, i64 token) {
    i64 sequence = pair / j.heads, head = pair - sequence * j.heads;
    return reinterpret_cast<IN*>(at) + ((sequence * tokens + token) * j.heads + head) * HEAD_DIM;
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

// Brings `count` rows to shared memory, and zeros up to whole chunks.
DEVICE void bring(COMPUTE* tile, const IN* rows, i64 step, int count) {
    int padded = (count + CHUNK - 1) / CHUNK * CHUNK;
    for (int i = threadIdx.x; i < padded * (PADDED / VEC); i += blockDim.x) {
        int row = i / (PADDED / VEC), d = i % (PADDED / VEC) * VEC;
        vec<COMPUTE, VEC> x;
        if (row < count) {
            x = piece(rows + row * step, d);
        } else {
            #pragma unroll
            for (int e = 0; e < VEC; e++) x.at[e] = 0;
        }
        store<VEC>(tile + row * PADDED + d, x);
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

DEVICE void take_shared(COMPUTE* x, const COMPUTE* row, int lane, COMPUTE factor) {
    #pragma unroll
    for (int r = 0; r < EACH / VEC; r++) {
        vec<COMPUTE, VEC> v = load<VEC>(row + place(r, lane));
        #pragma unroll
        for (int e = 0; e < VEC; e++) x[r * VEC + e] = v.at[e] * factor;
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

// The lane's part of a product of rows, one of them in shared memory.
DEVICE COMPUTE dot(const COMPUTE* x, const COMPUTE* row, int lane) {
    COMPUTE sum = 0;
    #pragma unroll
    for (int r = 0; r < EACH / VEC; r++) {
        vec<COMPUTE, VEC> v = load<VEC>(row + place(r, lane));
        #pragma unroll
        for (int e = 0; e < VEC; e++) sum += x[r * VEC + e] * v.at[e];
    }
    return sum;
}

DEVICE void add_times(COMPUTE* x, COMPUTE factor, const COMPUTE* row, int lane) {
    #pragma unroll
    for (int r = 0; r < EACH / VEC; r++) {
        vec<COMPUTE, VEC> v = load<VEC>(row + place(r, lane));
        #pragma unroll
        for (int e = 0; e < VEC; e++) x[r * VEC + e] += factor * v.at[e];
    }
}

DEVICE COMPUTE row_sum(COMPUTE x) { return warp_reduce<LANES>(x, Add()); }

DEVICE void clear(COMPUTE* x) {
    #pragma unroll
    for (int e = 0; e < EACH; e++) x[e] = 0;
}

// The row that a thread works on: of which of the block's pairs, and which of the pair's `count` rows. Threads without
// a row compute along with row 0, so that whole warps meet.
struct Row {
    i64 pair;
    int slot, row, lane;
    // The first of the block's rows.
    int first;
    bool there;
};

DEVICE Row locate(const Job& j, i64 count) {
    Row r;
    int group = threadIdx.x / LANES, groups = blockDim.x / LANES;
    r.lane = threadIdx.x % LANES;
    i64 first_pair = blockIdx.x / j.parts * j.together;
    r.first = (int)(blockIdx.x % j.parts) * groups;
    r.slot = j.together > 1 ? group / (int)count : 0;
    r.row = r.first + group - r.slot * (int)count * (j.together > 1);
    r.there = r.slot < j.together && first_pair + r.slot < j.pairs && r.row < count;
    if (!r.there) r.slot = r.row = 0;
    r.pair = first_pair + r.slot;
    return r;
}

// Elements from the tile of one pair to that of the next.
DEVICE int slot_size(const Job& j) { return (int)j.tile * PADDED + LANES * VEC; }

// Brings the same rows of each of the block's pairs.
DEVICE void bring_all(COMPUTE* tiles, const Heads& x, const Job& j, int first, int count) {
    i64 first_pair = blockIdx.x / j.parts * j.together;
    for (int s = 0; s < j.together && first_pair + s < j.pairs; s++) {
        bring(tiles + s * slot_size(j), begin(x, j, first_pair + s) + first * x.token, x.token, count);
    }
}

