// Gradients of short sequences: a block holds its pairs whole. Probabilities are computed again wherever they are
// wanted, which takes less time than to keep them in shared memory.

KERNEL __launch_bounds__(256) attention_backward(const __grid_constant__ Job j) {
    i64 first_pair = (i64)blockIdx.x * j.together;
    int queries = (int)j.queries, keys = (int)j.keys, slots = slots_of(j, first_pair);
    int group = threadIdx.x / LANES, groups = blockDim.x / LANES, lane = threadIdx.x % LANES;
    int q_size = slot_size(queries), k_size = slot_size(keys);
    COMPUTE* q = reinterpret_cast<COMPUTE*>(memory);
    COMPUTE* d_o = q + j.together * q_size;
    COMPUTE* k = d_o + j.together * q_size;
    COMPUTE* v = k + j.together * k_size;
    COMPUTE* sums = v + j.together * k_size;
    COMPUTE* deltas = sums + j.together * queries;
    bring(q, q_size, j.q, j, first_pair, slots, 0, queries);
    bring(d_o, q_size, j.d_o, j, first_pair, slots, 0, queries);
    bring(k, k_size, j.k, j, first_pair, slots, 0, keys);
    bring(v, k_size, j.v, j, first_pair, slots, 0, keys);
    const COMPUTE* kept = reinterpret_cast<const COMPUTE*>(j.sums) + first_pair * queries;
    for (int i = threadIdx.x; i < slots * queries; i += blockDim.x) sums[i] = kept[i];
    __syncthreads();
    COMPUTE scale = (COMPUTE)j.scale;

    // Queries.
    int units = (queries + ROWS - 1) / ROWS;
    for (int base = 0; base < slots * units; base += groups) {
        bool there = base + group < slots * units;
        int at = there ? base + group : 0, slot = at / units, row = (at - slot * units) * ROWS;
        const COMPUTE* k_rows = k + slot * k_size;
        const COMPUTE* v_rows = v + slot * k_size;
        COMPUTE x[ROWS][EACH], y[ROWS][EACH], dx[ROWS][EACH], sum[ROWS], delta[ROWS];
        #pragma unroll
        for (int w = 0; w < ROWS; w++) {
            int line = min(row + w, queries - 1);
            take_shared(x[w], q + slot * q_size + line * PADDED, lane, scale);
            take_shared(y[w], d_o + slot * q_size + line * PADDED, lane, (COMPUTE)1);
            clear(dx[w]);
            sum[w] = sums[slot * queries + line];
            delta[w] = 0;
        }
        // Once for delta, once for the gradients, which depend on it.
        #pragma unroll
        for (int pass = 0; pass < 2; pass++) {
            #pragma unroll 2
            for (int i = 0; i < keys; i++) {
                COMPUTE key[EACH], value[EACH];
                look(key, k_rows + i * PADDED, lane);
                look(value, v_rows + i * PADDED, lane);
                #pragma unroll
                for (int w = 0; w < ROWS; w++) {
                    COMPUTE s = row_sum(dot(x[w], key)), d = row_sum(dot(y[w], value));
                    COMPUTE p = CAUSAL && i > row + w ? (COMPUTE)0 : exp_(s - sum[w]);
                    if (pass == 0) delta[w] += p * d;
                    else add_times(dx[w], p * (d - delta[w]) * scale, key);
                }
            }
        }
        #pragma unroll
        for (int w = 0; w < ROWS; w++) {
            if (there && row + w < queries) {
                give(row_of(j.dq, j, first_pair + slot, row + w), dx[w], lane, (COMPUTE)1);
                if (lane == 0) deltas[slot * queries + row + w] = delta[w];
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
            take_shared(x[w], k + slot * k_size + line * PADDED, lane, scale);
            take_shared(y[w], v + slot * k_size + line * PADDED, lane, (COMPUTE)1);
            clear(dx[w]);
            clear(dy[w]);
        }
        #pragma unroll 2
        for (int i = 0; i < queries; i++) {
            COMPUTE query[EACH], d_out[EACH];
            look(query, q_rows + i * PADDED, lane);
            look(d_out, d_o_rows + i * PADDED, lane);
            COMPUTE sum = sums[slot * queries + i], delta = deltas[slot * queries + i];
            #pragma unroll
            for (int w = 0; w < ROWS; w++) {
                COMPUTE s = row_sum(dot(x[w], query)), d = row_sum(dot(y[w], d_out));
                COMPUTE p = CAUSAL && row + w > i ? (COMPUTE)0 : exp_(s - sum);
                add_times(dy[w], p, d_out);
                add_times(dx[w], p * (d - delta) * scale, query);
            }
        }
        #pragma unroll
        for (int w = 0; w < ROWS; w++) {
            if (there && row + w < keys) {
                give(row_of(j.dk, j, first_pair + slot, row + w), dx[w], lane, (COMPUTE)1);
                give(row_of(j.dv, j, first_pair + slot, row + w), dy[w], lane, (COMPUTE)1);
            }
        }
    }
}
