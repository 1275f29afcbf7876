// Gradients of sequences of any length.

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
