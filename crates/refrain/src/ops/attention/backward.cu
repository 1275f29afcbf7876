// Gradients of short sequences.

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
