// The sum of the products of two rows, which four lanes share: of the output with its gradient, it is the sum of the weights times
// their gradients.
DEVICE float product_of_rows(const Head& a, const Head& b, int row, int t) {
    float sum = 0;
    if (row < a.count) {
        #pragma unroll
        for (int run = t * RUN; run < HEAD_DIM; run += 4 * RUN) {
            const IN *x_at = a.at + row * a.token + run, *y_at = b.at + row * b.token + run;
            #pragma unroll
            for (int e = 0; e < RUN; e += PIECE) {
                if (run + e >= HEAD_DIM) break;
                vec<IN, PIECE> x = load<PIECE>(x_at + e), y = load<PIECE>(y_at + e);
                #pragma unroll
                for (int i = 0; i < PIECE; i++) sum = fmaf(to<float>(x.at[i]), to<float>(y.at[i]), sum);
            }
        }
    }
    return over_row(sum);
}

// Tiles of a side in shared memory: a single one has no other on its way. Groups of warps keep scores where the second ones would be.
constexpr int TILES = WHOLE && !GROUPS ? 1 : 2;
constexpr int SCORE_BYTES = WHOLE && !GROUPS ? 2 * ROWS * SCORE_PITCH * (int)sizeof(Number) : 0;

// The gradients of the queries (any number of them), and what those of the keys need. Constant: WHOLE (there is no other block and
// no other tile, so that the gradients of the keys and values follow from the same products).
KERNEL(attention_flash_queries, Job, j, __launch_bounds__(THREADS, FEW_REGISTERS && !WHOLE ? 4 : RESIDENT)) {
    static_assert((int)sizeof(Number) * PITCH * (2 * ROWS + 2 * TILES * TILE) + SCORE_BYTES == MEMORY_BYTES, "as the launch counts it");
    Number* q_tile = reinterpret_cast<Number*>(memory);
    Number* g_tile = q_tile + ROWS * PITCH;
    Number* k_tiles = g_tile + ROWS * PITCH;
    Number* v_tiles = k_tiles + TILES * TILE * PITCH;
    u32 parts = (u32)j.parts;
    i64 pair = blockIdx.x / parts;
    int block = (int)(blockIdx.x % parts) * ROWS, queries = (int)j.queries, keys = (int)j.keys;
    Head q(j.q, j, pair, queries), d_o(j.d_o, j, pair, queries), k(j.k, j, pair, keys), v(j.v, j, pair, keys);
    Head out(j.o, j, pair, queries), dq(j.dq, j, pair, queries);
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    int first = block + warp * 16, end = CAUSAL && !D_BEFORE ? min(keys, block + ROWS + (int)j.past) : keys;
    int tiles = (end + TILE - 1) / TILE;
    // A single tile has the weights and their gradients anyway. The same for all blocks, however many rows they have.
    const bool single = keys <= TILE;
    Exponent exponent(j);
    Dropout dropout(j);
    float scale = (float)j.scale, kept_scale = (float)j.kept_scale;
    q.load<ROWS>(q_tile, block);
    d_o.load<ROWS>(g_tile, block);
    k.load<TILE>(k_tiles, 0);
    v.load<TILE>(v_tiles, 0);
    commit();

    LeftRows<(LEFT_WORDS <= 32)> x(q_tile + warp * 16 * PITCH), y(g_tile + warp * 16 * PITCH);
    float sums[EIGHTS][4];
    Softmax softmax[2];
    #pragma unroll
    for (int h = 0; h < 2; h++) {
        int query = first + g + h * 8;
        i64 at = pair * queries + query;
        bool there = query < queries;
        softmax[h].largest = there ? base_of(exponent.sign * reinterpret_cast<const float*>(j.largest)[at]) : 0.0f;
        softmax[h].inverse = there ? reinterpret_cast<const float*>(j.inverse)[at] : 0.0f;
        softmax[h].delta = single ? 0.0f : product_of_rows(out, d_o, query, t);
        if (!single && t == 0 && there) reinterpret_cast<Softmax*>(j.softmaxes)[at] = softmax[h];
    }
    clear(sums, EIGHTS);
    int turns = WHOLE ? 1 : tiles;
    for (int n = 0; n < turns; n++) {
        if (n + 1 < turns) {
            k.load<TILE>(k_tiles + (n + 1) % 2 * TILE * PITCH, (n + 1) * TILE);
            v.load<TILE>(v_tiles + (n + 1) % 2 * TILE * PITCH, (n + 1) * TILE);
        }
        commit();
        const u64 kept[2] = {kept_of(j, dropout, pair, first + g, n * TILE), kept_of(j, dropout, pair, first + g + 8, n * TILE)};
        // What lies in memory for both rows is loaded at once, before anything is stored: for all that the compiler knows, a store
        // changes what is loaded.
        vec<IN, 2> before[BEFORE ? 2 * TILE_EIGHTS : 1] = {}, d_after[AFTER ? 2 * TILE_EIGHTS : 1] = {};
        #pragma unroll
        for (int i = 0; i < (BEFORE || AFTER ? 2 * TILE_EIGHTS : 0); i++) {
            int query = first + g + i % 2 * 8, key = n * TILE + i / 2 * 8 + 2 * t, left = query < queries ? keys - key : 0;
            if (BEFORE) before[BEFORE ? i : 0] = take_scores(before_of(j, pair, query) + key, left > 0, left > 1);
            if (AFTER) d_after[AFTER ? i : 0] = take_scores(j.d_after + score_at(j, pair, query, key), left > 0, left > 1);
        }
        wait_for_copies<1>();
        publish_tiles();
        __syncthreads();
        if (n == 0) {
            x.keep();
            y.keep();
        }
        const Number* k_tile = k_tiles + n % 2 * TILE * PITCH;
        float s[TILE_EIGHTS][4], d[TILE_EIGHTS][4];
        multiply_rows(s, x, k_tile);
        multiply_rows(d, y, v_tiles + n % 2 * TILE * PITCH);
        wait_for_products(s, d);
        bool all = !CAUSAL && (n + 1) * TILE <= keys;
        #pragma unroll
        for (int h = 0; h < 2; h++) {
            int query = first + g + h * 8;
            Softmax& row = softmax[h];
            if (HAS_SCORES) {
                #pragma unroll
                for (int c = 0; c < TILE_EIGHTS; c++) add_scores(s[c] + 2 * h, scale, before[BEFORE ? 2 * c + h : 0]);
            }
            if (DROPS) {
                #pragma unroll
                for (int c = 0; c < 2 * TILE_EIGHTS; c++) {
                    float& weight = d[c / 2][2 * h + c % 2];
                    weight = kept[h] >> (c / 2 * 8 + 2 * t + c % 2) & 1 ? weight * kept_scale : 0.0f;
                }
            }
            #pragma unroll
            for (int c = 0; c < 2 * TILE_EIGHTS; c++) {
                float& score = s[c / 2][2 * h + c % 2];
                score = exponent.of(score * exponent.sign, row.largest);
            }
            if (!all) hide(j, s, h, query, n * TILE, 0.0f);
            if (single) {
                #pragma unroll
                for (int c = 0; c < 2 * TILE_EIGHTS; c++) {
                    row.delta = fmaf(s[c / 2][2 * h + c % 2], d[c / 2][2 * h + c % 2], row.delta);
                }
                row.delta = over_row(row.delta) * row.inverse;
                if (!WHOLE && t == 0 && query < queries) reinterpret_cast<Softmax*>(j.softmaxes)[pair * queries + query] = row;
            }
            #pragma unroll
            for (int c = 0; c < 2 * TILE_EIGHTS; c++) {
                float& score = s[c / 2][2 * h + c % 2];
                int key = n * TILE + c / 2 * 8 + 2 * t + c % 2;
                bool sees = all || seen(j, query, key);
                float& weight = d[c / 2][2 * h + c % 2];
                float p = score * row.inverse;
                score = with_gradient(p, weight - row.delta, sees ? to<float>(d_after[AFTER ? c / 2 * 2 + h : 0].at[c % 2]) : 0.0f);
                if (D_BEFORE && !sees) score = 0;
                if (WHOLE) weight = !DROPS ? p : kept[h] >> (c / 2 * 8 + 2 * t + c % 2) & 1 ? p * kept_scale : 0.0f;
            }
            #pragma unroll
            for (int c = 0; c < (D_BEFORE ? TILE_EIGHTS : 0); c++) {
                int key = n * TILE + c * 8 + 2 * t, left = query < queries ? keys - key : 0;
                const vec<IN, 2> v = Two<IN>::round(s[c][2 * h], s[c][2 * h + 1]);
                put_scores(j.d_before + score_at(j, pair, query, key), v, left > 0, left > 1);
            }
            // What is not finite in keys and values must not come from queries that there are not.
            if (WHOLE && first + 16 > queries) {
                #pragma unroll
                for (int c = 0; c < 2 * TILE_EIGHTS; c++) if (query >= queries) s[c / 2][2 * h + c % 2] = d[c / 2][2 * h + c % 2] = 0;
            }
        }
#if WHOLE
#if GROUPS
        Number *weights = k_tiles + TILE * PITCH, *d_scores = v_tiles + TILE * PITCH;
#else
        Number *weights = v_tiles + TILE * PITCH, *d_scores = weights + ROWS * SCORE_PITCH;
        add_rows(sums, s, k_tile);
#endif
        put_rows(weights, d);
        put_rows(d_scores, s);
        publish_tiles();
        __syncthreads();
        float d_keys[EIGHTS][4], d_values[EIGHTS][4];
        multiply_columns(d_values, weights, g_tile);
        multiply_columns(d_keys, d_scores, q_tile);
#if GROUPS
        add_rows(sums, s, k_tile);
#endif
        wait_for_products(d_values, d_keys);
        __syncthreads();
        Head dk(j.dk, j, pair, keys), dv(j.dv, j, pair, keys);
        // Each warp's gradients pass through rows that no other one needs any more.
        dk.store_rows(g_tile + warp * 16 * PITCH, first, [&](int d, int e) { return d_keys[d][e] * scale; });
        dv.store_rows(q_tile + warp * 16 * PITCH, first, [&](int d, int e) { return d_values[d][e]; });
#else
        add_rows(sums, s, k_tile);
#endif
        __syncthreads();
    }
    wait_for_copies<0>();
    __syncthreads();
    dq.store_rows(q_tile + warp * 16 * PITCH, first, [&](int d, int e) { return sums[d][e] * scale; });
}

