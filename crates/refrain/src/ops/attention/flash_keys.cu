// The gradients of a block of keys and values (any number of them), by which the queries pass.
KERNEL(attention_flash_keys, Job, j, __launch_bounds__(THREADS, RESIDENT)) {
    static_assert((int)sizeof(Number) * PITCH * (2 * ROWS + 4 * TILE) + 2 * TILE * (int)sizeof(Softmax) == MEMORY_BYTES,
                  "as the launch counts it");
    Number* k_tile = reinterpret_cast<Number*>(memory);
    Number* v_tile = k_tile + ROWS * PITCH;
    Number* q_tiles = v_tile + ROWS * PITCH;
    Number* g_tiles = q_tiles + 2 * TILE * PITCH;
    float* row_tiles = reinterpret_cast<float*>(g_tiles + 2 * TILE * PITCH);
    u32 parts = (u32)j.parts;
    i64 pair = blockIdx.x / parts;
    int block = (int)(blockIdx.x % parts) * ROWS, queries = (int)j.queries, keys = (int)j.keys;
    Head q(j.q, j, pair, queries), d_o(j.d_o, j, pair, queries), k(j.k, j, pair, keys), v(j.v, j, pair, keys);
    Head dk(j.dk, j, pair, keys), dv(j.dv, j, pair, keys);
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    // Earlier queries do not see the keys of this block.
    int first = block + warp * 16, begin = CAUSAL ? max(block - (int)j.past, 0) / TILE : 0, tiles = (queries + TILE - 1) / TILE;
    const float* rows = reinterpret_cast<const float*>(j.softmaxes) + pair * queries * 3;
    Exponent exponent(j);
    Dropout dropout(j);
    float scale = (float)j.scale, kept_scale = (float)j.kept_scale;
    auto load = [&](int n) {
        q.load<TILE>(q_tiles + n % 2 * TILE * PITCH, n * TILE);
        d_o.load<TILE>(g_tiles + n % 2 * TILE * PITCH, n * TILE);
        #pragma unroll
        for (int begin = 0; begin < TILE * 3; begin += THREADS) {
            int i = begin + threadIdx.x, at = n * TILE * 3 + i;
            bool there = at < queries * 3;
            if (i < TILE * 3) copy_async<4>(row_tiles + n % 2 * TILE * 3 + i, there ? rows + at : rows, there ? 4 : 0);
        }
    };
    k.load<ROWS>(k_tile, block);
    v.load<ROWS>(v_tile, block);
    if (begin < tiles) load(begin);
    commit();

    // The keys and values of wide heads are read again for each tile, because the registers do not hold them.
    LeftRows<(LEFT_WORDS <= 16)> x(k_tile + warp * 16 * PITCH), y(v_tile + warp * 16 * PITCH);
    float d_keys[EIGHTS][4], d_values[EIGHTS][4];
    clear(d_keys, EIGHTS);
    clear(d_values, EIGHTS);
    for (int n = begin; n < tiles; n++) {
        if (n + 1 < tiles) load(n + 1);
        commit();
        // Of queries `lane` and `lane + 32` of the tile, for the 16 keys of the warp.
        u32 kept[(TILE + 31) / 32];
        #pragma unroll
        for (int i = 0; i < (TILE + 31) / 32; i++) kept[i] = (u32)kept_of(j, dropout, pair, n * TILE + i * 32 + lane, first);
        // What lies in memory is loaded at once.
        constexpr int NUMBERS = 4 * TILE_EIGHTS;
        IN before[BEFORE ? NUMBERS : 1], d_after[AFTER ? NUMBERS : 1];
        const i64 at = score_at(j, pair, n * TILE + 2 * t, first + g), step = STRIDED ? j.before_query : j.keys;
        const IN *before_row = before_of(j, pair, n * TILE + 2 * t) + first + g, *d_after_row = j.d_after + at;
        #pragma unroll
        for (int i = 0; i < (BEFORE || AFTER ? NUMBERS : 0); i++) {
            int of_query = i / 4 * 8 + i / 2 % 2, of_key = i % 2 * 8;
            bool there = n * TILE + 2 * t + of_query < queries && first + g + of_key < keys;
            if (BEFORE) before[BEFORE ? i : 0] = there ? before_row[of_query * step + of_key] : from<IN>(0.0f);
            if (AFTER) d_after[AFTER ? i : 0] = there ? d_after_row[of_query * j.keys + of_key] : from<IN>(0.0f);
        }
        wait_for_copies<1>();
        publish_tiles();
        __syncthreads();
        const Number* q_tile = q_tiles + n % 2 * TILE * PITCH;
        const Number* g_tile = g_tiles + n % 2 * TILE * PITCH;
        float s[TILE_EIGHTS][4], d[TILE_EIGHTS][4];
        if (n == begin) {
            x.keep();
            y.keep();
        }
        multiply_rows(s, x, q_tile);
        multiply_rows(d, y, g_tile);
        wait_for_products(s, d);
        #pragma unroll
        for (int c = 0; c < 2 * TILE_EIGHTS; c++) {
            int at = c / 2 * 8 + 2 * t + c % 2, query = n * TILE + at;
            u32 keeps = DROPS ? __shfl_sync(FULL, kept[c / 8], at & 31) >> g : 0;
            const float* row = row_tiles + (n % 2 * TILE + at) * 3;
            float largest = row[0], inverse = row[1], delta = row[2];
            #pragma unroll
            for (int h = 0; h < 2; h++) {
                float& score = s[c / 2][2 * h + c % 2];
                float& weight = d[c / 2][2 * h + c % 2];
                int key = first + g + h * 8;
                bool there = query < queries && key < keys, sees = is_before(j, key, query);
                if (HAS_SCORES) score = fmaf(score, scale, BEFORE ? to<float>(before[BEFORE ? 2 * c + h : 0]) : 0.0f);
                float p = exponent.of(score * exponent.sign, largest) * inverse;
                if (query >= queries || !sees) p = 0;
                bool keep = !DROPS || keeps >> (8 * h) & 1;
                if (DROPS) weight = keep ? weight * kept_scale : 0.0f;
                score = with_gradient(p, weight - delta, there && sees ? to<float>(d_after[AFTER ? 2 * c + h : 0]) : 0.0f);
                weight = !DROPS ? p : keep ? p * kept_scale : 0.0f;
            }
        }
        add_rows_of_both(d_values, d, g_tile, d_keys, s, q_tile);
        __syncthreads();
    }
    wait_for_copies<0>();
    __syncthreads();
    dk.store_rows(k_tile + warp * 16 * PITCH, first, [&](int d, int e) { return d_keys[d][e] * scale; });
    dv.store_rows(v_tile + warp * 16 * PITCH, first, [&](int d, int e) { return d_values[d][e]; });
}
