// The gradients of the queries (any number of them), and what those of the keys need.
KERNEL(attention_flash_queries, Job, j, __launch_bounds__(THREADS)) {
    static_assert((int)sizeof(Number) * PITCH * (2 * ROWS + 4 * TILE) == MEMORY_BYTES, "as the launch counts it");
    Number* q_tile = reinterpret_cast<Number*>(memory);
    Number* g_tile = q_tile + ROWS * PITCH;
    Number* k_tiles = g_tile + ROWS * PITCH;
    Number* v_tiles = k_tiles + 2 * TILE * PITCH;
    u32 parts = (u32)j.parts;
    i64 pair = blockIdx.x / parts;
    int block = (int)(blockIdx.x % parts) * ROWS, queries = (int)j.queries, keys = (int)j.keys;
    Head q(j.q, j, pair, queries), d_o(j.d_o, j, pair, queries), k(j.k, j, pair, keys), v(j.v, j, pair, keys);
    Head dq(j.dq, j, pair, queries);
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    int first = block + warp * 16, end = CAUSAL && !D_BEFORE ? min(keys, block + ROWS + (int)j.past) : keys;
    int tiles = (end + TILE - 1) / TILE;
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
    Softmax softmax[2] = {{-INFINITY_F, 0, 0}, {-INFINITY_F, 0, 0}};
    clear(sums, EIGHTS);
    // All keys pass by twice: for the softmax, and for the gradients, which need it. A single tile does both at once.
    int turns = tiles == 1 ? 1 : 2 * tiles;
    for (int i = 0; i < turns; i++) {
        int n = i % tiles;
        if (i + 1 < turns) {
            int next = (i + 1) % tiles * TILE;
            k.load<TILE>(k_tiles + (i + 1) % 2 * TILE * PITCH, next);
            v.load<TILE>(v_tiles + (i + 1) % 2 * TILE * PITCH, next);
        }
        commit();
        wait_for_copies<1>();
        __syncthreads();
        if (i == 0) {
            x.keep();
            y.keep();
        }
        const Number* k_tile = k_tiles + i % 2 * TILE * PITCH;
        float s[TILE_EIGHTS][4], d[TILE_EIGHTS][4];
        multiply_rows(s, x, k_tile);
        multiply_rows(d, y, v_tiles + i % 2 * TILE * PITCH);
        bool all = !CAUSAL && (n + 1) * TILE <= keys;
        #pragma unroll
        for (int h = 0; h < 2; h++) {
            int query = first + g + h * 8;
            Softmax& row = softmax[h];
            i64 line = score_at(j, pair, query, 0);
            if (HAS_SCORES) {
                #pragma unroll
                for (int c = 0; c < TILE_EIGHTS; c++) {
                    add_before(j, s[c] + 2 * h, scale, pair, query, n * TILE + c * 8 + 2 * t);
                }
            }
            if (DROPS) {
                u64 kept = kept_of_row(dropout, line + n * TILE);
                #pragma unroll
                for (int c = 0; c < 2 * TILE_EIGHTS; c++) {
                    float& weight = d[c / 2][2 * h + c % 2];
                    weight = kept >> (c / 2 * 8 + 2 * t + c % 2) & 1 ? weight * kept_scale : 0.0f;
                }
            }
            #pragma unroll
            for (int c = 0; c < 2 * TILE_EIGHTS; c++) {
                float& score = s[c / 2][2 * h + c % 2];
                score *= exponent.sign;
                if (!all && !seen(j, query, n * TILE + c / 2 * 8 + 2 * t + c % 2)) score = -INFINITY_F;
            }
            if (i < tiles) {
                float most = row.largest, sum = 0, delta = 0;
                #pragma unroll
                for (int c = 0; c < 2 * TILE_EIGHTS; c++) most = fmaxf(most, s[c / 2][2 * h + c % 2]);
                most = largest_of_row(most);
                float base = base_of(most), keep = row.largest == -INFINITY_F ? 0.0f : exponent.of(row.largest, base);
                row.largest = most;
                #pragma unroll
                for (int c = 0; c < 2 * TILE_EIGHTS; c++) {
                    float p = exponent.of(s[c / 2][2 * h + c % 2], base);
                    if (!all && !seen(j, query, n * TILE + c / 2 * 8 + 2 * t + c % 2)) p = 0;
                    sum += p;
                    delta = fmaf(p, d[c / 2][2 * h + c % 2], delta);
                }
                row.inverse = row.inverse * keep + sum;
                row.delta = row.delta * keep + delta;
            }
            if (i == tiles - 1) {
                row.largest = base_of(row.largest);
                row.inverse = inverse_of(over_row(row.inverse));
                row.delta = over_row(row.delta) * row.inverse;
                if (t == 0 && query < queries) reinterpret_cast<Softmax*>(j.softmaxes)[pair * queries + query] = row;
            }
            if (i >= turns - tiles) {
                // Loaded before anything is stored, since for all that the compiler knows a store changes what is loaded.
                float d_after[AFTER ? 2 * TILE_EIGHTS : 1];
                #pragma unroll
                for (int c = 0; c < 2 * TILE_EIGHTS; c++) {
                    int key = n * TILE + c / 2 * 8 + 2 * t + c % 2;
                    bool there = query < queries && key < keys;
                    if (AFTER) d_after[AFTER ? c : 0] = there ? to<float>(j.d_after[line + key]) : 0.0f;
                }
                #pragma unroll
                for (int c = 0; c < 2 * TILE_EIGHTS; c++) {
                    float& score = s[c / 2][2 * h + c % 2];
                    int key = n * TILE + c / 2 * 8 + 2 * t + c % 2;
                    bool there = query < queries && key < keys, sees = all || seen(j, query, key);
                    float p = exponent.of(score, row.largest) * row.inverse;
                    if (!sees) p = 0;
                    score = p * (d[c / 2][2 * h + c % 2] - row.delta);
                    if (AFTER && sees) score += d_after[AFTER ? c : 0];
                    if (D_BEFORE && there) j.d_before[line + key] = from<IN>(sees ? score : 0.0f);
                }
            }
        }
        if (i >= turns - tiles) add_rows(sums, s, k_tile);
        __syncthreads();
    }
    wait_for_copies<0>();
    __syncthreads();
    dq.store_rows(q_tile + warp * 16 * PITCH, first, [&](int d, int e) { return sums[d][e] * scale; });
}

