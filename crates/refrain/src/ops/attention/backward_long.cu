// Gradients for sequences of any length.

// The gradients of the queries (any number of them), and what the gradients of the keys need.
KERNEL(attention_backward_queries, Job, j, __launch_bounds__(256)) {
    Rows r = locate(j, j.queries);
    i64 first_pair = r.pair - r.slot;
    int keys = (int)j.keys, tile = (int)j.tile, size = slot_size(tile), slots = slots_of(j, first_pair);
    COMPUTE* k_tiles = reinterpret_cast<COMPUTE*>(memory);
    COMPUTE* v_tiles = k_tiles + j.pairs_per_block * size;
    const COMPUTE* k_rows = k_tiles + r.slot * size;
    const COMPUTE* v_rows = v_tiles + r.slot * size;
    COMPUTE scale = (COMPUTE)j.scale;
    COMPUTE q[ROWS][EACH], d_o[ROWS][EACH], dq[ROWS][EACH];
    Softmax softmax[ROWS];
    #pragma unroll
    for (int w = 0; w < ROWS; w++) {
        take(q[w], row_of(j.q, j, r.pair, r.at(w)), r.lane, scale);
        take(d_o[w], row_of(j.d_o, j, r.pair, r.at(w)), r.lane, (COMPUTE)1);
        clear(dq[w]);
        softmax[w].begin();
    }

    Dropout dropout(j);
    COMPUTE kept_scale = (COMPUTE)j.kept_scale;

    int end = CAUSAL && j.pairs_per_block == 1 ? min(keys, r.end + (int)j.past) : keys;
    // Pass 0 computes the softmax, pass 1 the gradients, which need it.
    for (int pass = 0; pass < 2; pass++) {
        for (int first = 0; first < end; first += tile) {
            int count = min(tile, end - first);
            // A tile that holds all keys is loaded only once.
            if (pass == 0 || end > tile) {
                if (pass > 0 || first > 0) __syncthreads();
                load_tile(k_tiles, size, j.k, j, first_pair, slots, first, count);
                load_tile(v_tiles, size, j.v, j, first_pair, slots, first, count);
                __syncthreads();
            }
            #pragma unroll 2
            for (int i = 0; i < count; i++) {
                COMPUTE key[EACH], value[EACH];
                load_row(key, k_rows + i * PADDED, r.lane);
                load_row(value, v_rows + i * PADDED, r.lane);
                #pragma unroll
                for (int w = 0; w < ROWS; w++) {
                    COMPUTE s = row_sum(dot(q[w], key)), d = row_sum(dot(d_o[w], value));
                    i64 at = score_at(j, r.pair, r.at(w), first + i);
                    if (BEFORE) s += to<COMPUTE>(before_of(j, r.pair, r.at(w))[first + i]);
                    if (DROPS) d = dropout.keeps(row_at(j, r.pair, r.at(w)), first + i) ? d * kept_scale : (COMPUTE)0;
                    bool seen = is_before(j, first + i, r.row + w);
                    if (pass == 0) {
                        if (seen) softmax[w].add(s, d);
                    } else {
                        COMPUTE p = seen ? softmax[w].probability(s) : (COMPUTE)0;
                        COMPUTE ds = p * (d - softmax[w].delta);
                        if (AFTER && seen) ds += to<COMPUTE>(j.d_after[at]);
                        add_times(dq[w], ds * scale, key);
                    }
                }
            }
        }
        #pragma unroll
        for (int w = 0; w < ROWS; w++) if (pass == 0) softmax[w].end();
    }
    #pragma unroll
    for (int w = 0; w < ROWS; w++) {
        if (w < r.there) {
            store_tile(row_of(j.dq, j, r.pair, r.row + w), dq[w], r.lane, (COMPUTE)1);
            if (r.lane == 0) reinterpret_cast<Softmax*>(j.softmaxes)[r.pair * j.queries + r.row + w] = softmax[w];
        }
    }
}

// The gradients of keys and values (any number of them).
KERNEL(attention_backward_keys, Job, j, __launch_bounds__(256)) {
    Rows r = locate(j, j.keys);
    i64 first_pair = r.pair - r.slot;
    int queries = (int)j.queries, tile = (int)j.tile, size = slot_size(tile), slots = slots_of(j, first_pair);
    COMPUTE* q_tiles = reinterpret_cast<COMPUTE*>(memory);
    COMPUTE* d_o_tiles = q_tiles + j.pairs_per_block * size;
    const COMPUTE* q_rows = q_tiles + r.slot * size;
    const COMPUTE* d_o_rows = d_o_tiles + r.slot * size;
    const Softmax* softmaxes = reinterpret_cast<const Softmax*>(j.softmaxes) + r.pair * j.queries;
    COMPUTE k[ROWS][EACH], v[ROWS][EACH], dk[ROWS][EACH], dv[ROWS][EACH];
    #pragma unroll
    for (int w = 0; w < ROWS; w++) {
        take(k[w], row_of(j.k, j, r.pair, r.at(w)), r.lane, (COMPUTE)1);
        take(v[w], row_of(j.v, j, r.pair, r.at(w)), r.lane, (COMPUTE)1);
        clear(dk[w]);
        clear(dv[w]);
    }

    Dropout dropout(j);
    COMPUTE kept_scale = (COMPUTE)j.kept_scale;

    // Earlier queries do not see the keys of this block. The gradients of their scores are 0.
    int begin_at = CAUSAL && !D_BEFORE && j.pairs_per_block == 1 ? max(r.first - (int)j.past, 0) / tile * tile : 0;
    for (int first = begin_at; first < queries; first += tile) {
        int count = min(tile, queries - first);
        if (first > begin_at) __syncthreads();
        load_tile(q_tiles, size, j.q, j, first_pair, slots, first, count, (COMPUTE)j.scale);
        load_tile(d_o_tiles, size, j.d_o, j, first_pair, slots, first, count);
        __syncthreads();
        #pragma unroll 2
        for (int i = 0; i < count; i++) {
            COMPUTE query[EACH], d_out[EACH];
            load_row(query, q_rows + i * PADDED, r.lane);
            load_row(d_out, d_o_rows + i * PADDED, r.lane);
            Softmax softmax = softmaxes[first + i];
            #pragma unroll
            for (int w = 0; w < ROWS; w++) {
                COMPUTE s = row_sum(dot(k[w], query)), d = row_sum(dot(v[w], d_out)), keep = 1;
                i64 at = score_at(j, r.pair, first + i, r.at(w));
                bool seen = is_before(j, r.row + w, first + i);
                if (BEFORE) s += to<COMPUTE>(before_of(j, r.pair, first + i)[r.at(w)]);
                if (DROPS) {
                    keep = dropout.keeps(row_at(j, r.pair, first + i), r.at(w)) ? kept_scale : (COMPUTE)0;
                    d *= keep;
                }
                COMPUTE p = seen ? softmax.probability(s) : (COMPUTE)0, ds = p * (d - softmax.delta);
                if (AFTER && seen) ds += to<COMPUTE>(j.d_after[at]);
                if (D_BEFORE && w < r.there && r.lane == 0) j.d_before[at] = from<IN>(seen ? ds : (COMPUTE)0);
                add_times(dv[w], DROPS ? p * keep : p, d_out);
                add_times(dk[w], ds, query);
            }
        }
    }
    #pragma unroll
    for (int w = 0; w < ROWS; w++) {
        if (w < r.there) {
            store_tile(row_of(j.dk, j, r.pair, r.row + w), dk[w], r.lane, (COMPUTE)1);
            store_tile(row_of(j.dv, j, r.pair, r.row + w), dv[w], r.lane, (COMPUTE)1);
        }
    }
}
