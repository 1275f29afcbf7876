// Gradients for short sequences: a block holds all rows of its (sequence, head) pairs. Probabilities are recomputed
// where they are needed, because that is faster than keeping them in shared memory.

KERNEL(attention_backward, Job, j, __launch_bounds__(256)) {
    i64 first_pair = (i64)blockIdx.x * j.pairs_per_block;
    int queries = (int)j.queries, keys = (int)j.keys, slots = slots_of(j, first_pair);
    int group = threadIdx.x / LANES, groups = blockDim.x / LANES, lane = threadIdx.x % LANES;
    int q_size = slot_size(queries), k_size = slot_size(keys);
    COMPUTE* q = reinterpret_cast<COMPUTE*>(memory);
    COMPUTE* d_o = q + j.pairs_per_block * q_size;
    COMPUTE* k = d_o + j.pairs_per_block * q_size;
    COMPUTE* v = k + j.pairs_per_block * k_size;
    Softmax* softmaxes = reinterpret_cast<Softmax*>(v + j.pairs_per_block * k_size);
    COMPUTE scale = (COMPUTE)j.scale;
    load_tile(q, q_size, j.q, j, first_pair, slots, 0, queries, scale);
    load_tile(d_o, q_size, j.d_o, j, first_pair, slots, 0, queries);
    load_tile(k, k_size, j.k, j, first_pair, slots, 0, keys);
    load_tile(v, k_size, j.v, j, first_pair, slots, 0, keys);
    __syncthreads();
    Dropout dropout(j);
    COMPUTE kept_scale = (COMPUTE)j.kept_scale;

    // Queries.
    int units = (queries + ROWS - 1) / ROWS;
    for (int base = 0; base < slots * units; base += groups) {
        bool there = base + group < slots * units;
        int at = there ? base + group : 0, slot = at / units, row = (at - slot * units) * ROWS;
        const COMPUTE* k_rows = k + slot * k_size;
        const COMPUTE* v_rows = v + slot * k_size;
        COMPUTE x[ROWS][EACH], y[ROWS][EACH], dx[ROWS][EACH];
        Softmax softmax[ROWS];
        #pragma unroll
        for (int w = 0; w < ROWS; w++) {
            int line = min(row + w, queries - 1);
            load_row(x[w], q + slot * q_size + line * PADDED, lane);
            load_row(y[w], d_o + slot * q_size + line * PADDED, lane);
            clear(dx[w]);
            softmax[w].begin();
        }
        // Pass 0 computes the softmax, pass 1 the gradients, which need it.
        #pragma unroll
        for (int pass = 0; pass < 2; pass++) {
            #pragma unroll 2
            for (int i = 0; i < keys; i++) {
                COMPUTE key[EACH], value[EACH];
                load_row(key, k_rows + i * PADDED, lane);
                load_row(value, v_rows + i * PADDED, lane);
                #pragma unroll
                for (int w = 0; w < ROWS; w++) {
                    COMPUTE s = row_sum(dot(x[w], key)), d = row_sum(dot(y[w], value));
                    i64 at = score_at(j, first_pair + slot, min(row + w, queries - 1), i);
                    if (BEFORE) s += to<COMPUTE>(before_of(j, first_pair + slot, min(row + w, queries - 1))[i]);
                    if (DROPS) d = dropout.keeps(row_at(j, first_pair + slot, min(row + w, queries - 1)), i) ? d * kept_scale : (COMPUTE)0;
                    bool seen = is_before(j, i, row + w);
                    if (pass == 0) {
                        if (seen) softmax[w].add(s, d);
                    } else {
                        COMPUTE p = seen ? softmax[w].probability(s) : (COMPUTE)0;
                        COMPUTE ds = p * (d - softmax[w].delta);
                        if (AFTER && seen) ds += to<COMPUTE>(j.d_after[at]);
                        add_times(dx[w], ds * scale, key);
                    }
                }
            }
            #pragma unroll
            for (int w = 0; w < ROWS; w++) if (pass == 0) softmax[w].end();
        }
        #pragma unroll
        for (int w = 0; w < ROWS; w++) {
            if (there && row + w < queries) {
                store_tile(row_of(j.dq, j, first_pair + slot, row + w), dx[w], lane, (COMPUTE)1);
                if (lane == 0) softmaxes[slot * queries + row + w] = softmax[w];
            }
        }
    }
    __syncthreads();

    // Keys and values.
    units = (keys + ROWS - 1) / ROWS;
    for (int base = 0; base < slots * units; base += groups) {
        bool there = base + group < slots * units;
        int at = there ? base + group : 0, slot = at / units, row = (at - slot * units) * ROWS;
        const COMPUTE* q_rows = q + slot * q_size;
        const COMPUTE* d_o_rows = d_o + slot * q_size;
        COMPUTE x[ROWS][EACH], y[ROWS][EACH], dx[ROWS][EACH], dy[ROWS][EACH];
        #pragma unroll
        for (int w = 0; w < ROWS; w++) {
            int line = min(row + w, keys - 1);
            load_row(x[w], k + slot * k_size + line * PADDED, lane);
            load_row(y[w], v + slot * k_size + line * PADDED, lane);
            clear(dx[w]);
            clear(dy[w]);
        }
        #pragma unroll 2
        for (int i = 0; i < queries; i++) {
            COMPUTE query[EACH], d_out[EACH];
            load_row(query, q_rows + i * PADDED, lane);
            load_row(d_out, d_o_rows + i * PADDED, lane);
            Softmax softmax = softmaxes[slot * queries + i];
            #pragma unroll
            for (int w = 0; w < ROWS; w++) {
                COMPUTE s = row_sum(dot(x[w], query)), d = row_sum(dot(y[w], d_out)), keep = 1;
                i64 at = score_at(j, first_pair + slot, i, min(row + w, keys - 1));
                bool seen = is_before(j, row + w, i);
                if (BEFORE) s += to<COMPUTE>(before_of(j, first_pair + slot, i)[min(row + w, keys - 1)]);
                if (DROPS) {
                    keep = dropout.keeps(row_at(j, first_pair + slot, i), min(row + w, keys - 1)) ? kept_scale : (COMPUTE)0;
                    d *= keep;
                }
                COMPUTE p = seen ? softmax.probability(s) : (COMPUTE)0, ds = p * (d - softmax.delta);
                if (AFTER && seen) ds += to<COMPUTE>(j.d_after[at]);
                if (D_BEFORE && there && row + w < keys && lane == 0) j.d_before[at] = from<IN>(seen ? ds : (COMPUTE)0);
                add_times(dy[w], DROPS ? p * keep : p, d_out);
                add_times(dx[w], ds, query);
            }
        }
        #pragma unroll
        for (int w = 0; w < ROWS; w++) {
            if (there && row + w < keys) {
                store_tile(row_of(j.dk, j, first_pair + slot, row + w), dx[w], lane, (COMPUTE)1);
                store_tile(row_of(j.dv, j, first_pair + slot, row + w), dy[w], lane, (COMPUTE)1);
            }
        }
    }
}
