// Gradients of queries, keys and values: 16 queries with all keys at a time. Scores are transposed, one row per key.
// So their gradients can be used directly as left operands for the gradients of keys and values, and after one
// transposition for those of the queries.

constexpr int KEY_BLOCKS = (KEY_EIGHTS + 1) / 2;
// Distance between keys in the space for transposing fragments.
constexpr int TURN_PITCH = 20;
constexpr int TURN_SIZE = FORM == BF16 ? 0 : KEY_BLOCKS * 16 * TURN_PITCH;
// How many warps fit on a multiprocessor by their registers. Scores in memory and dropout need some, too.
constexpr bool MANY_REGISTERS = (EIGHTS > 2 || FORM == SPLIT_TF32 && KEY_BLOCKS > 2) && (HAS_SCORES || DROPS);
constexpr int RESIDENT = KEY_BLOCKS * (2 + EIGHTS) <= 9 && !MANY_REGISTERS ? 16 : 8;

KERNEL(attention_tensor_backward, Job, j, __launch_bounds__(WARPS * 32, RESIDENT / WARPS)) {
    constexpr int Q_ROWS = QUERY_BLOCKS * 16, K_ROWS = KEY_BLOCKS * 16;
    constexpr int Q_SIZE = Tile<Q_ROWS>::SIZE, K_SIZE = Tile<K_ROWS>::SIZE;
    constexpr int NUMBERS = 2 * (Q_SIZE + K_SIZE + Q_ROWS) + TURN_SIZE;
    static_assert((int)sizeof(float) * WARPS * NUMBERS == MEMORY_BYTES, "as the launch counts it");
    float* q_tiles = reinterpret_cast<float*>(memory);
    float* d_o_tiles = q_tiles + WARPS * Q_SIZE;
    float* k_tiles = d_o_tiles + WARPS * Q_SIZE;
    float* v_tiles = k_tiles + WARPS * K_SIZE;
    float* all_tops = v_tiles + WARPS * K_SIZE;
    float* all_inverses = all_tops + WARPS * Q_ROWS;
    float* turns = all_inverses + WARPS * Q_ROWS;
    i64 first_pair = (i64)blockIdx.x * WARPS;
    int queries = (int)j.queries, keys = (int)j.keys;
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    i64 pair = first_pair + warp;
    Mover mover(j, first_pair);
    mover.load_tile<K_ROWS>(k_tiles, j.k, keys);
    mover.load_tile<Q_ROWS>(q_tiles, j.q, queries);
    mover.load_tile<K_ROWS>(v_tiles, j.v, keys);
    mover.load_tile<Q_ROWS>(d_o_tiles, j.d_o, queries);
    float* tops = all_tops + warp * Q_ROWS;
    float* inverses = all_inverses + warp * Q_ROWS;
    for (int i = lane; i < Q_ROWS; i += 32) {
        bool there = pair < j.pairs && i < queries;
        tops[i] = there ? reinterpret_cast<const float*>(j.largest)[pair * queries + i] : 0.0f;
        inverses[i] = there ? reinterpret_cast<const float*>(j.inverse)[pair * queries + i] : 0.0f;
    }
    wait_for_tile();

    float* q = q_tiles + warp * Q_SIZE;
    const float* d_o = d_o_tiles + warp * Q_SIZE;
    float* k = k_tiles + warp * K_SIZE;
    float* v = v_tiles + warp * K_SIZE;
    float* turn = turns + warp * TURN_SIZE;
    float scale = (float)j.scale, exponent_scale = HAS_SCORES ? LOG2_E : scale * LOG2_E;
    float kept_scale = (float)j.kept_scale;
    Dropout dropout(j);

    // Rows of keys and values as left operands.
    auto rows = [&](const float* x, int m, int step) {
        return left<true>([&](int u, int e) {
            return along(x + (m * 16 + g + e / 2 * 8) * PITCH, step * UNIT + u, e % 2, t);
        });
    };
    float dk[KEY_BLOCKS][EIGHTS][4], dv[KEY_BLOCKS][EIGHTS][4];
    #pragma unroll
    for (int m = 0; m < KEY_BLOCKS; m++) {
        #pragma unroll
        for (int d = 0; d < EIGHTS; d++) {
            #pragma unroll
            for (int e = 0; e < 4; e++) dk[m][d][e] = dv[m][d][e] = 0;
        }
    }

    #pragma unroll 1
    for (int first = 0; first < queries && pair < j.pairs; first += 16) {
        // p: scores, later probabilities. ds: gradients of probabilities, later of scores.
        float p[KEY_BLOCKS][2][4], ds[KEY_BLOCKS][2][4];
        #pragma unroll
        for (int m = 0; m < KEY_BLOCKS; m++) {
            #pragma unroll
            for (int i = 0; i < 8; i++) p[m][i / 4][i % 4] = ds[m][i / 4][i % 4] = 0;
        }
        #pragma unroll
        for (int step = 0; step < STEPS; step++) {
            Left x[KEY_BLOCKS], y[KEY_BLOCKS];
            Right query[2], d_out[2];
            #pragma unroll
            for (int m = 0; m < KEY_BLOCKS; m++) {
                x[m] = rows(k, m, step);
                y[m] = rows(v, m, step);
            }
            #pragma unroll
            for (int n = 0; n < 2; n++) {
                int row = (first + n * 8 + g) * PITCH;
                query[n] = right([&](int u, int e) { return along(q + row, step * UNIT + u, e, t); });
                d_out[n] = right([&](int u, int e) { return along(d_o + row, step * UNIT + u, e, t); });
            }
            #pragma unroll
            for (int term = 0; term < TERMS; term++) {
                // In the forward pass, queries are on the left. With its order of terms, the scores are equal bit for
                // bit.
                int turned_term = TERMS > 1 && term < 2 ? 1 - term : term;
                #pragma unroll
                for (int i = 0; i < 2 * KEY_BLOCKS; i++) multiply(p[i / 2][i % 2], x[i / 2], query[i % 2], turned_term);
                #pragma unroll
                for (int i = 0; i < 2 * KEY_BLOCKS; i++) multiply(ds[i / 2][i % 2], y[i / 2], d_out[i % 2], term);
            }
        }

        // A lane has keys g and g + 8 of each block, for four queries.
        #pragma unroll
        for (int c = 0; c < 4; c++) {
            int n = c / 2, e = c % 2, query = first + n * 8 + 2 * t + e;
            i64 line = score_at(j, pair, query, g);
            if (HAS_SCORES) {
                #pragma unroll
                for (int i = 0; i < 2 * KEY_BLOCKS; i++) {
                    float& x = p[i / 2][n][i % 2 * 2 + e];
                    bool there = BEFORE && query < queries && i * 8 + g < keys;
                    x = fmaf(x, scale, there ? to<float>(before_of(j, pair, query)[i * 8 + g]) : 0.0f);
                }
            }
            // Loaded before anything is stored, since for all that the compiler knows a store changes what is loaded.
            float d_after[2 * KEY_BLOCKS];
            #pragma unroll
            for (int i = 0; i < 2 * KEY_BLOCKS; i++) {
                bool there = AFTER && query < queries && i * 8 + g < keys;
                d_after[i] = there ? to<float>(j.d_after[line + i * 8]) : 0.0f;
            }
            u32 kept = 0;
            if (DROPS) {
                #pragma unroll 1
                for (int i = 0; i < KEY_EIGHTS; i++) kept |= (u32)dropout.keeps(line + i * 8) << i;
            }
            float top = tops[query], inverse = inverses[query], delta = 0;
            float shift = shift_of(top, exponent_scale);
            if (is_large(shift)) {
                #pragma unroll
                for (int i = 0; i < 2 * KEY_BLOCKS; i++) p[i / 2][n][i % 2 * 2 + e] -= top;
                shift = 0;
            }
            #pragma unroll
            for (int i = 0; i < 2 * KEY_BLOCKS; i++) {
                float& x = p[i / 2][n][i % 2 * 2 + e];
                x = exp2_(fmaf(x, exponent_scale, -shift)) * inverse;
                if (!seen(j, i * 8 + g, query, i)) x = 0;
                float& d = ds[i / 2][n][i % 2 * 2 + e];
                if (DROPS) d = kept >> i & 1 ? d * kept_scale : 0.0f;
                delta = fmaf(x, d, delta);
            }
            #pragma unroll
            for (int d = 4; d < 32; d *= 2) delta += __shfl_xor_sync(FULL, delta, d);
            #pragma unroll
            for (int i = 0; i < 2 * KEY_BLOCKS; i++) {
                float& x = ds[i / 2][n][i % 2 * 2 + e];
                float& weight = p[i / 2][n][i % 2 * 2 + e];
                x = weight * (x - delta);
                if (AFTER || D_BEFORE) {
                    bool there = query < queries && i * 8 + g < keys, sees = there && seen(j, i * 8 + g, query, i);
                    if (AFTER && sees) x += d_after[i];
                    if (D_BEFORE && there) j.d_before[line + i * 8] = from<IN>(sees ? x : 0.0f);
                }
                if (DROPS) weight = kept >> i & 1 ? weight * kept_scale : 0.0f;
            }
        }

        // Gradients of values and keys.
        Left turned[FORM == BF16 ? KEY_BLOCKS : 1];
        #pragma unroll
        for (int begin = 0; begin < 2; begin += UNIT) {
            Left x[KEY_BLOCKS], y[KEY_BLOCKS];
            Right query[EIGHTS], d_out[EIGHTS];
            #pragma unroll
            for (int m = 0; m < KEY_BLOCKS; m++) {
                x[m] = left<false>([&](int u, int e) { return p[m][begin + u][e]; });
                y[m] = left<false>([&](int u, int e) { return ds[m][begin + u][e]; });
                if (FORM == BF16) turned[FORM == BF16 ? m : 0] = y[m];
            }
            #pragma unroll
            for (int d = 0; d < EIGHTS; d++) {
                int at = (first + begin * 8 + 2 * t) * PITCH + d * 8 + g;
                query[d] = right([&](int u, int e) { return q[at + (u * 8 + e) * PITCH]; });
                d_out[d] = right([&](int u, int e) { return d_o[at + (u * 8 + e) * PITCH]; });
            }
            #pragma unroll
            for (int i = 0; i < EIGHTS * KEY_BLOCKS; i++) {
                int m = i % KEY_BLOCKS, d = i / KEY_BLOCKS;
                // Tensor cores truncate their sums; for f32, these additions round.
                float of_values[4] = {0, 0, 0, 0}, of_keys[4] = {0, 0, 0, 0};
                #pragma unroll
                for (int term = 0; term < TERMS; term++) {
                    multiply(FORM == SPLIT_TF32 ? of_values : dv[m][d], x[m], d_out[d], term);
                    multiply(FORM == SPLIT_TF32 ? of_keys : dk[m][d], y[m], query[d], term);
                }
                #pragma unroll
                for (int e = 0; e < 4; e++) {
                    if (FORM == SPLIT_TF32) dv[m][d][e] += of_values[e];
                    if (FORM == SPLIT_TF32) dk[m][d][e] += of_keys[e];
                }
            }
        }

        // Gradients of queries.
        if (FORM != BF16) {
            #pragma unroll
            for (int i = 0; i < 4 * KEY_BLOCKS; i++) {
                int m = i / 4, n = i / 2 % 2, h = i % 2;
                put_pair(turn + (m * 16 + h * 8 + g) * TURN_PITCH + n * 8 + 2 * t, ds[m][n][2 * h], ds[m][n][2 * h + 1]);
            }
            __syncwarp();
        }
        Chains dq[EIGHTS];
        #pragma unroll
        for (int d = 0; d < EIGHTS; d++) dq[d].clear();
        #pragma unroll
        for (int begin = 0; begin < KEY_EIGHTS; begin += UNIT) {
            Left x;
            Right y[EIGHTS];
            if (FORM == BF16) {
                #pragma unroll
                for (int i = 0; i < 4; i++) {
                    x.at[0][i] = transpose_matrix(turned[FORM == BF16 ? begin / 2 : 0].at[0][i % 2 * 2 + i / 2]);
                }
            } else {
                x = left<false>([&](int, int e) {
                    return turn[(begin * 8 + 2 * t + e % 2) * TURN_PITCH + g + e / 2 * 8];
                });
            }
            #pragma unroll
            for (int d = 0; d < EIGHTS; d++) {
                y[d] = right([&](int u, int e) { return k[((begin + u) * 8 + 2 * t + e) * PITCH + d * 8 + g]; });
            }
            #pragma unroll
            for (int term = 0; term < TERMS; term++) {
                #pragma unroll
                for (int d = 0; d < EIGHTS; d++) dq[d].add(x, y[d], term);
            }
        }
        // Store them over the queries and the transposed fragments, which no lane reads any more.
        __syncwarp();
        put_rows(q, first + g, t, [&](int d, int e) { return dq[d].sum(e) * scale; });
    }

    // The same for keys and values.
    __syncwarp();
    #pragma unroll
    for (int m = 0; m < KEY_BLOCKS; m++) {
        put_rows(k, m * 16 + g, t, [&](int d, int e) { return dk[m][d][e] * scale; });
        put_rows(v, m * 16 + g, t, [&](int d, int e) { return dv[m][d][e]; });
    }
    __syncthreads();
    mover.store_tile<Q_ROWS>(j.dq, q_tiles, queries);
    mover.store_tile<K_ROWS>(j.dk, k_tiles, keys);
    mover.store_tile<K_ROWS>(j.dv, v_tiles, keys);
}
