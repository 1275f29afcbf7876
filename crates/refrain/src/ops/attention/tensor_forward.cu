// The outputs and the saved row statistics: 16 queries with all keys at a time. Exponents are base 2.

// If they are few, the keys and values of a lane stay in registers.
constexpr bool KEEP = KEY_EIGHTS * STEPS * PARTS <= (DROPS ? 8 : 12);
// How many warps fit on a multiprocessor by their registers.
constexpr int RESIDENT = KEY_EIGHTS + EIGHTS <= 12 ? 16 : 8;
constexpr int KEY_STEPS = (KEY_EIGHTS + UNIT - 1) / UNIT;

KERNEL_THAT_WAITS(attention_tensor_forward, Job, j, __launch_bounds__(WARPS * 32, RESIDENT / WARPS)) {
    constexpr int Q_ROWS = QUERY_BLOCKS * 16, K_ROWS = KEY_EIGHTS * 8;
    constexpr int Q_SIZE = Tile<Q_ROWS>::SIZE, K_SIZE = Tile<K_ROWS>::SIZE;
    static_assert(WARPS * (Tile<Q_ROWS>::BYTES + 2 * Tile<K_ROWS>::BYTES) == TILE_BYTES, "as the launch counts it");
    Number* q_tiles = reinterpret_cast<Number*>(memory);
    Number* k_tiles = q_tiles + WARPS * Q_SIZE;
    Number* v_tiles = k_tiles + WARPS * K_SIZE;
    // The scores before, and over them those for the next layer.
    IN* scores = reinterpret_cast<IN*>(v_tiles + WARPS * K_SIZE);
    i64 first_pair = (i64)blockIdx.x * WARPS;
    int queries = (int)j.queries, keys = (int)j.keys;
    Mover mover(j, first_pair);
    Scores of_pairs(j, first_pair);
    take_turn();
    mover.load_tile<Q_ROWS>(q_tiles, j.q, queries);
    mover.load_tile<K_ROWS>(k_tiles, j.k, keys);
    mover.load_tile<K_ROWS>(v_tiles, j.v, keys);
    if (BEFORE) of_pairs.load_before(scores, j);
    wait_for_tile();

    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    Number* q = q_tiles + warp * Q_SIZE;
    const Number* k = k_tiles + warp * K_SIZE;
    const Number* v = v_tiles + warp * K_SIZE;
    i64 pair = first_pair + warp;
    // The sign of the scale goes to the queries, so that the largest score stays the largest. Scores that are added to
    // others or handed on are scaled before the softmax.
    float factor = (float)j.scale, sign = !HAS_SCORES && factor < 0 ? -1.0f : 1.0f;
    float scale = HAS_SCORES ? LOG2_E : fabsf(factor) * LOG2_E;
    Dropout dropout(j);

    auto key = [&](int n, int s) { return right_rows(k, n * 8, s); };
    auto value = [&](int s, int d) { return right_columns<K_ROWS>(v, s * UNIT, d); };
    Right keys_kept[KEEP ? KEY_EIGHTS : 1][KEEP ? STEPS : 1], values_kept[KEEP ? KEY_STEPS : 1][KEEP ? EIGHTS : 1];
    if (KEEP) {
        #pragma unroll
        for (int n = 0; n < KEY_EIGHTS; n++) {
            #pragma unroll
            for (int s = 0; s < STEPS; s++) keys_kept[KEEP ? n : 0][KEEP ? s : 0] = key(n, s);
        }
        #pragma unroll
        for (int s = 0; s < KEY_STEPS; s++) {
            #pragma unroll
            for (int d = 0; d < EIGHTS; d++) values_kept[KEEP ? s : 0][KEEP ? d : 0] = value(s, d);
        }
    }

    // Of the t-th 16 queries, so that each lane has some to save.
    float inverses[2] = {1, 1}, tops[2] = {0, 0};
    #pragma unroll 1
    for (int first = 0; first < queries && pair < j.pairs; first += 16) {
        float s[KEY_EIGHTS][4];
        #pragma unroll
        for (int n = 0; n < KEY_EIGHTS; n++) {
            #pragma unroll
            for (int e = 0; e < 4; e++) s[n][e] = 0;
        }
        #pragma unroll
        for (int step = 0; step < STEPS; step++) {
            Left x = left_rows(q, first, step, sign < 0);
            Right y[KEY_EIGHTS];
            #pragma unroll
            for (int n = 0; n < KEY_EIGHTS; n++) y[n] = KEEP ? keys_kept[KEEP ? n : 0][KEEP ? step : 0] : key(n, step);
            #pragma unroll
            for (int term = 0; term < TERMS; term++) {
                #pragma unroll
                for (int n = 0; n < KEY_EIGHTS; n++) multiply_along(s[n], x, y[n], term);
            }
        }

        u64 kept_of_all = DROPS ? kept_of_queries(j, dropout, pair, first) : 0;
        float largest[2], shifts[2], inverse[2];
        #pragma unroll
        for (int h = 0; h < 2; h++) {
            int query = first + h * 8 + g;
            if (HAS_SCORES) {
                bool there = query < queries;
                IN* row = scores + of_pairs.row(query) + 2 * t;
                // All are loaded before one is stored, since for all that the compiler knows a store changes what is loaded.
                #pragma unroll
                for (int n = 0; n < KEY_EIGHTS; n++) {
                    int key = n * 8 + 2 * t;
                    add_before(s[n] + 2 * h, factor, row + n * 8, there && is_key(j, key, n), there && is_key(j, key + 1, n));
                }
                #pragma unroll
                for (int n = 0; n < KEY_EIGHTS; n++) {
                    int key = n * 8 + 2 * t;
                    write_scores(j, s[n] + 2 * h, row + n * 8, query, key, there && is_key(j, key, n), is_key(j, key + 1, n));
                }
            }
            float top = -INFINITY_F;
            #pragma unroll
            for (int i = 0; i < 2 * KEY_EIGHTS; i++) {
                float& x = s[i / 2][2 * h + i % 2];
                if (!seen(j, i / 2 * 8 + 2 * t + i % 2, query, i / 2)) x = -INFINITY_F;
                top = fmaxf(top, x);
            }
            top = fmaxf(top, __shfl_xor_sync(FULL, top, 1));
            largest[h] = fmaxf(top, __shfl_xor_sync(FULL, top, 2));
            // Rows whose scores are all minus infinity have no weight.
            shifts[h] = largest[h] == -INFINITY_F ? 0.0f : shift_of(largest[h], scale);
        }
        if (is_large(shifts[0]) || is_large(shifts[1])) {
            #pragma unroll
            for (int h = 0; h < 2; h++) {
                if (!is_large(shifts[h])) continue;
                #pragma unroll
                for (int i = 0; i < 2 * KEY_EIGHTS; i++) s[i / 2][2 * h + i % 2] -= largest[h];
                shifts[h] = 0;
            }
        }
        #pragma unroll
        for (int h = 0; h < 2; h++) {
            int query = first + h * 8 + g;
            float total = 0;
            #pragma unroll
            for (int i = 0; i < 2 * KEY_EIGHTS; i++) {
                float& x = s[i / 2][2 * h + i % 2];
                x = exp2_(fmaf(x, scale, -shifts[h]));
                if (!seen(j, i / 2 * 8 + 2 * t + i % 2, query, i / 2)) x = 0;
                total += x;
            }
            total = warp_reduce<4>(total, Add());
            inverse[h] = inverse_of(total);
            if (first == t * 16) {
                inverses[h] = inverse[h];
                tops[h] = BEFORE && largest[h] == -INFINITY_F ? 0.0f : sign * largest[h];
            }
            if (DROPS) {
                u64 kept = __shfl_sync(FULL, kept_of_all, 2 * (query - first)) >> 2 * t;
                #pragma unroll
                for (int i = 0; i < 2 * KEY_EIGHTS; i++) if (!(kept >> (i / 2 * 8 + i % 2) & 1)) s[i / 2][2 * h + i % 2] = 0;
                inverse[h] *= (float)j.kept_scale;
            }
        }

        Chains o[EIGHTS];
        #pragma unroll
        for (int d = 0; d < EIGHTS; d++) o[d].clear();
        #pragma unroll
        for (int step = 0; step < KEY_STEPS; step++) {
            Left x = left<false>([&](int u, int e) {
                int n = step * UNIT + u;
                return n < KEY_EIGHTS ? s[n < KEY_EIGHTS ? n : 0][e] : 0.0f;
            });
            Right y[EIGHTS];
            #pragma unroll
            for (int d = 0; d < EIGHTS; d++) y[d] = KEEP ? values_kept[KEEP ? step : 0][KEEP ? d : 0] : value(step, d);
            #pragma unroll
            for (int term = 0; term < TERMS; term++) {
                #pragma unroll
                for (int d = 0; d < EIGHTS; d++) o[d].add(x, y[d], term);
            }
        }
        // Store the outputs over the queries, which no lane reads any more.
        __syncwarp();
        put_rows(q, first + g, t, [&](int d, int e) { return o[d].sum(e) * inverse[e / 2]; });
    }
    #pragma unroll
    for (int h = 0; h < 2; h++) {
        int query = t * 16 + h * 8 + g;
        if (query < queries && pair < j.pairs) {
            reinterpret_cast<float*>(j.largest)[pair * queries + query] = tops[h];
            reinterpret_cast<float*>(j.inverse)[pair * queries + query] = inverses[h];
        }
    }
    __syncthreads();
    mover.store_tile<Q_ROWS>(j.o, q_tiles, queries);
    if (AFTER) of_pairs.store(j.after, scores);
}
