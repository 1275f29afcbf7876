// Attention, forward and backward: scores never leave the chip. LANES neighbours of a warp share a row (a query, or a
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

KERNEL __launch_bounds__(256) attention_forward(const __grid_constant__ Job j) {
    Row r = locate(j, j.queries);
    int keys = (int)j.keys, tile = (int)j.tile;
    COMPUTE* k_tiles = reinterpret_cast<COMPUTE*>(memory);
    COMPUTE* v_tiles = k_tiles + j.together * slot_size(j);
    const COMPUTE* k_rows = k_tiles + r.slot * slot_size(j);
    const COMPUTE* v_rows = v_tiles + r.slot * slot_size(j);
    COMPUTE q[EACH], o[EACH];
    take(q, begin(j.q, j, r.pair) + r.row * j.q.token, r.lane, (COMPUTE)j.scale);
    clear(o);
    COMPUTE largest = limits<COMPUTE>::lowest(), total = 0;

    // Later keys are seen by none of the block's queries.
    int end = CAUSAL && j.together == 1 ? min(keys, r.first + (int)blockDim.x / LANES) : keys;
    for (int first = 0; first < end; first += tile) {
        int count = min(tile, end - first);
        if (first > 0) __syncthreads();
        bring_all(k_tiles, j.k, j, first, count);
        bring_all(v_tiles, j.v, j, first, count);
        __syncthreads();
        for (int i = 0; i < count; i += CHUNK) {
            COMPUTE s[CHUNK], top = largest;
            #pragma unroll
            for (int c = 0; c < CHUNK; c++) s[c] = dot(q, k_rows + (i + c) * PADDED, r.lane);
            #pragma unroll
            for (int c = 0; c < CHUNK; c++) {
                s[c] = row_sum(s[c]);
                if (i + c >= count || (CAUSAL && first + i + c > r.row)) s[c] = limits<COMPUTE>::lowest();
                if (s[c] > top) top = s[c];
            }
            // Scores that are all minus infinity so far have no weight.
            COMPUTE shift = top == limits<COMPUTE>::lowest() ? (COMPUTE)0 : top;
            COMPUTE factor = exp_(largest - shift);
            largest = top;
            total *= factor;
            #pragma unroll
            for (int e = 0; e < EACH; e++) o[e] *= factor;
            #pragma unroll
            for (int c = 0; c < CHUNK; c++) {
                COMPUTE p = exp_(s[c] - shift);
                total += p;
                add_times(o, p, v_rows + (i + c) * PADDED, r.lane);
            }
        }
    }
    if (!r.there) return;
    give(result(j.o, j, j.queries, r.pair, r.row), o, r.lane, (COMPUTE)1 / total);
    if (r.lane == 0) reinterpret_cast<COMPUTE*>(j.sums)[r.pair * j.queries + r.row] = largest + log_(total);
}

// The gradients of the block's pairs, whole, with the probabilities in shared memory.
KERNEL __launch_bounds__(256) attention_backward(const __grid_constant__ Job j) {
    int queries = (int)j.queries, keys = (int)j.keys, together = (int)j.together;
    int group = threadIdx.x / LANES, groups = blockDim.x / LANES, lane = threadIdx.x % LANES;
    // Whole chunks, as they are brought.
    int q_size = (queries + CHUNK - 1) / CHUNK * CHUNK * PADDED, k_size = (keys + CHUNK - 1) / CHUNK * CHUNK * PADDED;
    // Odd, so that lanes that walk down a column meet in no bank.
    int pitch = keys | 1;
    i64 first_pair = (i64)blockIdx.x * together;
    together = (int)min((i64)together, j.pairs - first_pair);
    COMPUTE* q = reinterpret_cast<COMPUTE*>(memory);
    COMPUTE* d_o = q + j.together * q_size;
    COMPUTE* k = d_o + j.together * q_size;
    COMPUTE* v = k + j.together * k_size;
    COMPUTE* p = v + j.together * k_size;
    COMPUTE* dp = p + j.together * (queries * pitch);
    COMPUTE* deltas = dp + j.together * (queries * pitch);
    for (int s = 0; s < together; s++) {
        bring(q + s * q_size, begin(j.q, j, first_pair + s), j.q.token, queries);
        bring(d_o + s * q_size, begin(j.d_o, j, first_pair + s), j.d_o.token, queries);
        bring(k + s * k_size, begin(j.k, j, first_pair + s), j.k.token, keys);
        bring(v + s * k_size, begin(j.v, j, first_pair + s), j.v.token, keys);
    }
    __syncthreads();
    COMPUTE scale = (COMPUTE)j.scale;

    // Queries: probabilities, their gradients, and the queries' gradients.
    for (int base = 0; base < together * queries; base += groups) {
        bool there = base + group < together * queries;
        int at = there ? base + group : 0, slot = at / queries, row = at - slot * queries;
        COMPUTE x[EACH], y[EACH];
        take_shared(x, q + slot * q_size + row * PADDED, lane, scale);
        take_shared(y, d_o + slot * q_size + row * PADDED, lane, (COMPUTE)1);
        COMPUTE sum = reinterpret_cast<const COMPUTE*>(j.sums)[(first_pair + slot) * j.queries + row];
        COMPUTE* p_row = p + at * pitch;
        COMPUTE* dp_row = dp + at * pitch;
        COMPUTE delta = 0;
        #pragma unroll 4
        for (int i = 0; i < keys; i++) {
            COMPUTE s = row_sum(dot(x, k + slot * k_size + i * PADDED, lane));
            COMPUTE d = row_sum(dot(y, v + slot * k_size + i * PADDED, lane));
            COMPUTE weight = CAUSAL && i > row ? (COMPUTE)0 : exp_(s - sum);
            delta += weight * d;
            if (lane == 0 && there) {
                p_row[i] = weight;
                dp_row[i] = d;
            }
        }
        if (lane == 0 && there) deltas[at] = delta;
        __syncwarp();
        if (!there) continue;
        clear(x);
        #pragma unroll 4
        for (int i = 0; i < keys; i++) {
            add_times(x, p_row[i] * (dp_row[i] - delta) * scale, k + slot * k_size + i * PADDED, lane);
        }
        give(result(j.dq, j, j.queries, first_pair + slot, row), x, lane, (COMPUTE)1);
    }
    __syncthreads();

    // Keys and values.
    for (int at = group; at < together * keys; at += groups) {
        int slot = at / keys, row = at - slot * keys;
        COMPUTE x[EACH], y[EACH];
        clear(x);
        clear(y);
        #pragma unroll 4
        for (int i = 0; i < queries; i++) {
            int line = slot * queries + i;
            COMPUTE weight = p[line * pitch + row];
            COMPUTE d = weight * (dp[line * pitch + row] - deltas[line]) * scale;
            add_times(x, d, q + slot * q_size + i * PADDED, lane);
            add_times(y, weight, d_o + slot * q_size + i * PADDED, lane);
        }
        give(result(j.dk, j, j.keys, first_pair + slot, row), x, lane, (COMPUTE)1);
        give(result(j.dv, j, j.keys, first_pair + slot, row), y, lane, (COMPUTE)1);
    }
}

// The gradients of queries, of which there may be any number, and what those of keys need.
KERNEL __launch_bounds__(256) attention_backward_queries(const __grid_constant__ Job j) {
    Row r = locate(j, j.queries);
    int keys = (int)j.keys, tile = (int)j.tile;
    COMPUTE* k_tiles = reinterpret_cast<COMPUTE*>(memory);
    COMPUTE* v_tiles = k_tiles + j.together * slot_size(j);
    const COMPUTE* k_rows = k_tiles + r.slot * slot_size(j);
    const COMPUTE* v_rows = v_tiles + r.slot * slot_size(j);
    COMPUTE scale = (COMPUTE)j.scale;
    COMPUTE q[EACH], d_o[EACH], dq[EACH];
    take(q, begin(j.q, j, r.pair) + r.row * j.q.token, r.lane, scale);
    take(d_o, begin(j.d_o, j, r.pair) + r.row * j.d_o.token, r.lane, (COMPUTE)1);
    clear(dq);
    COMPUTE sum = reinterpret_cast<const COMPUTE*>(j.sums)[r.pair * j.queries + r.row], delta = 0;

    int end = CAUSAL && j.together == 1 ? min(keys, r.first + (int)blockDim.x / LANES) : keys;
    // Once for delta, once for the gradients, which depend on it.
    for (int pass = 0; pass < 2; pass++) {
        for (int first = 0; first < end; first += tile) {
            int count = min(tile, end - first);
            // One tile with all keys stays.
            if (pass == 0 || end > tile) {
                if (pass > 0 || first > 0) __syncthreads();
                bring_all(k_tiles, j.k, j, first, count);
                bring_all(v_tiles, j.v, j, first, count);
                __syncthreads();
            }
            #pragma unroll 4
            for (int i = 0; i < count; i++) {
                COMPUTE s = row_sum(dot(q, k_rows + i * PADDED, r.lane));
                COMPUTE d = row_sum(dot(d_o, v_rows + i * PADDED, r.lane));
                COMPUTE p = CAUSAL && first + i > r.row ? (COMPUTE)0 : exp_(s - sum);
                if (pass == 0) delta += p * d;
                else add_times(dq, p * (d - delta) * scale, k_rows + i * PADDED, r.lane);
            }
        }
    }
    if (!r.there) return;
    give(result(j.dq, j, j.queries, r.pair, r.row), dq, r.lane, (COMPUTE)1);
    if (r.lane == 0) reinterpret_cast<COMPUTE*>(j.deltas)[r.pair * j.queries + r.row] = delta;
}

// The gradients of keys and values, of which there may be any number.
KERNEL __launch_bounds__(256) attention_backward_keys(const __grid_constant__ Job j) {
    Row r = locate(j, j.keys);
    int queries = (int)j.queries, tile = (int)j.tile;
    COMPUTE* q_tiles = reinterpret_cast<COMPUTE*>(memory);
    COMPUTE* d_o_tiles = q_tiles + j.together * slot_size(j);
    const COMPUTE* q_rows = q_tiles + r.slot * slot_size(j);
    const COMPUTE* d_o_rows = d_o_tiles + r.slot * slot_size(j);
    const COMPUTE* sums = reinterpret_cast<const COMPUTE*>(j.sums) + r.pair * j.queries;
    const COMPUTE* deltas = reinterpret_cast<const COMPUTE*>(j.deltas) + r.pair * j.queries;
    COMPUTE scale = (COMPUTE)j.scale;
    COMPUTE k[EACH], v[EACH], dk[EACH], dv[EACH];
    take(k, begin(j.k, j, r.pair) + r.row * j.k.token, r.lane, scale);
    take(v, begin(j.v, j, r.pair) + r.row * j.v.token, r.lane, (COMPUTE)1);
    clear(dk);
    clear(dv);

    // Earlier queries see none of the block's keys.
    int begin_at = CAUSAL && j.together == 1 ? r.first / tile * tile : 0;
    for (int first = begin_at; first < queries; first += tile) {
        int count = min(tile, queries - first);
        if (first > begin_at) __syncthreads();
        bring_all(q_tiles, j.q, j, first, count);
        bring_all(d_o_tiles, j.d_o, j, first, count);
        __syncthreads();
        #pragma unroll 2
        for (int i = 0; i < count; i++) {
            COMPUTE s = row_sum(dot(k, q_rows + i * PADDED, r.lane));
            COMPUTE d = row_sum(dot(v, d_o_rows + i * PADDED, r.lane));
            COMPUTE p = CAUSAL && r.row > first + i ? (COMPUTE)0 : exp_(s - sums[first + i]);
            add_times(dv, p, d_o_rows + i * PADDED, r.lane);
            add_times(dk, p * (d - deltas[first + i]) * scale, q_rows + i * PADDED, r.lane);
        }
    }
    if (!r.there) return;
    give(result(j.dk, j, j.keys, r.pair, r.row), dk, r.lane, (COMPUTE)1);
    give(result(j.dv, j, j.keys, r.pair, r.row), dv, r.lane, (COMPUTE)1);
}
