// Gradients of queries, keys and values: 16 queries with all keys at a time. Scores are transposed, one row per key.
// So their gradients can be used directly as left operands for the gradients of keys and values, and after one
// transposition for those of the queries.

constexpr int KEY_BLOCKS = (KEY_EIGHTS + 1) / 2;
// Distance between keys in the space for transposing fragments.
constexpr int TURN_PITCH = 20;
constexpr int TURN_SIZE = FORM == BF16 ? 0 : KEY_BLOCKS * 16 * TURN_PITCH;
// A measure of the registers of a lane, and how many warps fit on a multiprocessor by them. Scores in memory and dropout need some, too.
constexpr int REGISTERS = FORM == SPLIT_TF32 ? KEY_BLOCKS * (1 + 4 * EIGHTS) : KEY_BLOCKS * (2 + EIGHTS);
constexpr bool FEW =
    REGISTERS <= (FORM == SPLIT_TF32 ? 13 : 9) && !(HAS_SCORES && (DROPS || FORM == TF32) && REGISTERS > 8);
constexpr int RESIDENT = FEW ? 16 : FORM == BF16 || FORM == SPLIT_TF32 && REGISTERS <= 18 && !DROPS ? 12 : 8;
// If they are few, the keys and values of a lane stay in registers.
constexpr int KEPT = PARTS * (KEY_BLOCKS * STEPS * (HALF ? 4 : 8) + KEY_BLOCKS * EIGHTS * 4 / UNIT);
constexpr bool KEEP = !DROPS && RESIDENT != 12 && KEPT <= (RESIDENT == 16 ? 20 : 48);

KERNEL_THAT_WAITS(attention_tensor_backward, Job, j, __launch_bounds__(WARPS * 32, RESIDENT / WARPS)) {
    constexpr int Q_ROWS = QUERY_BLOCKS * 16, K_ROWS = KEY_BLOCKS * 16;
    constexpr int Q_SIZE = Tile<Q_ROWS>::SIZE, K_SIZE = Tile<K_ROWS>::SIZE;
    constexpr int FLOATS = 2 * Q_ROWS + TURN_SIZE;
    static_assert(WARPS * (2 * (Tile<Q_ROWS>::BYTES + Tile<K_ROWS>::BYTES) + (int)sizeof(float) * FLOATS) == TILE_BYTES,
                  "as the launch counts it");
    Number* q_tiles = reinterpret_cast<Number*>(memory);
    Number* d_o_tiles = q_tiles + WARPS * Q_SIZE;
    Number* k_tiles = d_o_tiles + WARPS * Q_SIZE;
    Number* v_tiles = k_tiles + WARPS * K_SIZE;
    float* all_tops = reinterpret_cast<float*>(v_tiles + WARPS * K_SIZE);
    float* all_inverses = all_tops + WARPS * Q_ROWS;
    float* turns = all_inverses + WARPS * Q_ROWS;
    i64 first_pair = (i64)blockIdx.x * WARPS;
    // The scores before, and over them their gradients; the gradients of the scores for the next layer; and a row of zeros.
    Scores of_pairs(j, first_pair);
    unsigned char* scores = reinterpret_cast<unsigned char*>(turns + WARPS * TURN_SIZE);
    IN* before = reinterpret_cast<IN*>(scores);
    IN* d_after = reinterpret_cast<IN*>(scores + (BEFORE ? of_pairs.room() : 0));
    IN* zeros = reinterpret_cast<IN*>(scores + (BEFORE + AFTER) * of_pairs.room());
    int queries = (int)j.queries, keys = (int)j.keys;
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    i64 pair = first_pair + warp;
    Mover mover(j, first_pair);
    take_turn();
    mover.load_tile<K_ROWS>(k_tiles, j.k, keys);
    mover.load_tile<Q_ROWS>(q_tiles, j.q, queries);
    mover.load_tile<K_ROWS>(v_tiles, j.v, keys);
    mover.load_tile<Q_ROWS>(d_o_tiles, j.d_o, queries);
    if (BEFORE) of_pairs.load_before(before, j);
    if (AFTER) of_pairs.load(d_after, j.d_after);
    if (BEFORE || AFTER) for (int i = threadIdx.x; i < K_ROWS; i += WARPS * 32) zeros[i] = from<IN>(0.0f);
    float* tops = all_tops + warp * Q_ROWS;
    float* inverses = all_inverses + warp * Q_ROWS;
    for (int i = lane; i < Q_ROWS; i += 32) {
        bool there = pair < j.pairs && i < queries;
        tops[i] = there ? reinterpret_cast<const float*>(j.largest)[pair * queries + i] : 0.0f;
        inverses[i] = there ? reinterpret_cast<const float*>(j.inverse)[pair * queries + i] : 0.0f;
    }
    wait_for_tile();

    Number* q = q_tiles + warp * Q_SIZE;
    const Number* d_o = d_o_tiles + warp * Q_SIZE;
    Number* k = k_tiles + warp * K_SIZE;
    Number* v = v_tiles + warp * K_SIZE;
    float* turn = turns + warp * TURN_SIZE;
    float scale = (float)j.scale, exponent_scale = HAS_SCORES ? LOG2_E : scale * LOG2_E;
    float kept_scale = (float)j.kept_scale;
    Dropout dropout(j);

    Left keys_kept[KEEP ? KEY_BLOCKS : 1][KEEP ? STEPS : 1], values_kept[KEEP ? KEY_BLOCKS : 1][KEEP ? STEPS : 1];
    Right columns_kept[KEEP ? KEY_EIGHTS : 1][KEEP ? EIGHTS : 1];
    if (KEEP) {
        #pragma unroll
        for (int i = 0; i < KEY_BLOCKS * STEPS; i++) {
            int m = KEEP ? i / STEPS : 0, step = KEEP ? i % STEPS : 0;
            keys_kept[m][step] = left_rows(k, m * 16, step);
            values_kept[m][step] = left_rows(v, m * 16, step);
        }
        #pragma unroll
        for (int begin = 0; begin < KEY_EIGHTS; begin += UNIT) {
            #pragma unroll
            for (int d = 0; d < EIGHTS; d++) columns_kept[KEEP ? begin : 0][KEEP ? d : 0] = right_columns<K_ROWS>(k, begin, d);
        }
    }
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
                x[m] = KEEP ? keys_kept[KEEP ? m : 0][KEEP ? step : 0] : left_rows(k, m * 16, step);
                y[m] = KEEP ? values_kept[KEEP ? m : 0][KEEP ? step : 0] : left_rows(v, m * 16, step);
            }
            #pragma unroll
            for (int n = 0; n < 2; n++) {
                query[n] = right_rows(q, first + n * 8, step);
                d_out[n] = right_rows(d_o, first + n * 8, step);
            }
            #pragma unroll
            for (int term = 0; term < TERMS; term++) {
                // In the forward pass, queries are on the left. With its order of terms, the scores are equal bit for
                // bit.
                int turned_term = TERMS > 1 && term < 2 ? 1 - term : term;
                #pragma unroll
                for (int i = 0; i < 2 * KEY_BLOCKS; i++) multiply_along(p[i / 2][i % 2], x[i / 2], query[i % 2], turned_term);
                #pragma unroll
                for (int i = 0; i < 2 * KEY_BLOCKS; i++) multiply_along(ds[i / 2][i % 2], y[i / 2], d_out[i % 2], term);
            }
        }

        u64 kept_of_all = DROPS ? kept_of_queries(j, dropout, pair, first) : 0;
        // A lane has keys g and g + 8 of each block, for four queries.
        bool large = false;
        #pragma unroll
        for (int c = 0; c < 4; c++) {
            int n = c / 2, e = c % 2, query = first + n * 8 + 2 * t + e;
            large |= is_large(shift_of(tops[query], exponent_scale));
            if (!HAS_SCORES) continue;
            const IN* row = (query < queries ? before + of_pairs.row(query) : zeros) + g;
            #pragma unroll
            for (int i = 0; i < 2 * KEY_BLOCKS; i++) {
                float& x = p[i / 2][n][i % 2 * 2 + e];
                x = fmaf(x, scale, BEFORE && is_key(j, i * 8 + g, i) ? to<float>(row[i * 8]) : 0.0f);
            }
        }
        if (large) {
            #pragma unroll
            for (int i = 0; i < 8 * KEY_BLOCKS; i++) {
                float top = tops[first + i / 2 % 2 * 8 + 2 * t + i % 2];
                if (is_large(shift_of(top, exponent_scale))) p[i / 8][i / 2 % 2][i / 4 % 2 * 2 + i % 2] -= top;
            }
        }
        #pragma unroll
        for (int c = 0; c < 4; c++) {
            int n = c / 2, e = c % 2, query = first + n * 8 + 2 * t + e;
            float more[2 * KEY_BLOCKS];
            const IN* d_row = (query < queries ? d_after + of_pairs.row(query) : zeros) + g;
            #pragma unroll
            for (int i = 0; i < 2 * KEY_BLOCKS; i++) more[i] = AFTER && is_key(j, i * 8 + g, i) ? to<float>(d_row[i * 8]) : 0.0f;
            u64 kept = DROPS ? __shfl_sync(FULL, kept_of_all, 2 * (query - first)) >> g : 0;
            float shift = shift_of(tops[query], exponent_scale), inverse = inverses[query], delta = 0;
            if (is_large(shift)) shift = 0;
            #pragma unroll
            for (int i = 0; i < 2 * KEY_BLOCKS; i++) {
                float& x = p[i / 2][n][i % 2 * 2 + e];
                x = exp2_(fmaf(x, exponent_scale, -shift)) * inverse;
                if (!seen(j, i * 8 + g, query, i)) x = 0;
                float& d = ds[i / 2][n][i % 2 * 2 + e];
                if (DROPS) d = kept >> i * 8 & 1 ? d * kept_scale : 0.0f;
                delta = fmaf(x, d, delta);
            }
            #pragma unroll
            for (int d = 4; d < 32; d *= 2) delta += __shfl_xor_sync(FULL, delta, d);
            #pragma unroll
            for (int i = 0; i < 2 * KEY_BLOCKS; i++) {
                float& x = ds[i / 2][n][i % 2 * 2 + e];
                float& weight = p[i / 2][n][i % 2 * 2 + e];
                x = AFTER ? fmaf(weight, x - delta, more[i]) : weight * (x - delta);
                if (HAS_SCORES && !seen(j, i * 8 + g, query, i)) x = 0;
                if (DROPS) weight = kept >> i * 8 & 1 ? weight * kept_scale : 0.0f;
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
                query[d] = right_columns<Q_ROWS>(q, first / 8 + begin, d);
                d_out[d] = right_columns<Q_ROWS>(d_o, first / 8 + begin, d);
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
        }
        // All lanes have read the scores before, and written what others read.
        if (FORM != BF16 || D_BEFORE) __syncwarp();
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
            // They are also the gradients of the scores before.
            #pragma unroll
            for (int i = 0; i < (D_BEFORE ? 2 * UNIT : 0); i++) {
                int query = first + i % 2 * 8 + g, eight = begin + i / 2, key = eight * 8 + 2 * t;
                const float* of_key = turn + key * TURN_PITCH + g + i % 2 * 8;
                vec<IN, 2> v = FORM == BF16 ? Two<IN>::of(x.at[0][i]) : Two<IN>::round(of_key[0], of_key[TURN_PITCH]);
                IN* to = before + of_pairs.row(query) + key;
                put_scores(to, v, query < queries && is_key(j, key, eight), is_key(j, key + 1, eight));
            }
            #pragma unroll
            for (int d = 0; d < EIGHTS; d++) {
                y[d] = KEEP ? columns_kept[KEEP ? begin : 0][KEEP ? d : 0] : right_columns<K_ROWS>(k, begin, d);
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
    if (D_BEFORE) of_pairs.store(j.d_before, before);
}
