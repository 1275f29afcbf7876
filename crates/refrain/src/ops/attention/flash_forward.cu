// The outputs and the saved row statistics of a block of queries, by which the keys and values pass.

KERNEL(attention_flash_forward, Job, j, __launch_bounds__(THREADS, FEW_REGISTERS ? 5 : RESIDENT == 3 && !DROPS ? 4 : RESIDENT)) {
    static_assert((int)sizeof(Number) * PITCH * (ROWS + 4 * TILE) == MEMORY_BYTES, "as the launch counts it");
    Number* q_tile = reinterpret_cast<Number*>(memory);
    Number* k_tiles = q_tile + ROWS * PITCH;
    Number* v_tiles = k_tiles + 2 * TILE * PITCH;
    u32 parts = (u32)j.parts;
    i64 pair = blockIdx.x / parts;
    int block = (int)(blockIdx.x % parts) * ROWS, queries = (int)j.queries, keys = (int)j.keys;
    Head q(j.q, j, pair, queries), k(j.k, j, pair, keys), v(j.v, j, pair, keys), out(j.o, j, pair, queries);
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    int first = block + warp * 16, end = CAUSAL && !AFTER ? min(keys, block + ROWS + (int)j.past) : keys;
    int tiles = (end + TILE - 1) / TILE;
    Exponent exponent(j);
    Dropout dropout(j);
    q.load<ROWS>(q_tile, block);
    k.load<TILE>(k_tiles, 0);
    v.load<TILE>(v_tiles, 0);
    commit();

    LeftRows<(LEFT_WORDS <= 32)> x(q_tile + warp * 16 * PITCH);
    float o[EIGHTS][4], largest[2] = {-INFINITY_F, -INFINITY_F}, total[2] = {0, 0};
    clear(o, EIGHTS);
    for (int n = 0; n < tiles; n++) {
        if (n + 1 < tiles) {
            k.load<TILE>(k_tiles + (n + 1) % 2 * TILE * PITCH, (n + 1) * TILE);
            v.load<TILE>(v_tiles + (n + 1) % 2 * TILE * PITCH, (n + 1) * TILE);
        }
        commit();
        const u64 kept[2] = {kept_of(j, dropout, pair, first + g, n * TILE), kept_of(j, dropout, pair, first + g + 8, n * TILE)};
        wait_for_copies<1>();
        publish_tiles();
        __syncthreads();
        if (n == 0) x.keep();
        float s[TILE_EIGHTS][4];
        multiply_rows(s, x, k_tiles + n % 2 * TILE * PITCH);
        wait_for_products(s, s);
        bool all = !CAUSAL && (n + 1) * TILE <= keys;
        #pragma unroll
        for (int h = 0; h < 2; h++) {
            int query = first + g + h * 8;
            i64 line = score_at(j, pair, query, 0);
            if (HAS_SCORES) {
                // All are loaded before one is stored, since for all that the compiler knows a store changes what is loaded.
                int key = n * TILE + 2 * t, left = query < queries ? keys - key : 0;
                const IN* before = before_of(j, pair, query) + key;
                #pragma unroll
                for (int i = 0; i < TILE_EIGHTS; i++) {
                    add_before(s[i] + 2 * h, (float)j.scale, before + i * 8, i * 8 < left, i * 8 + 1 < left);
                }
                IN* after = j.after + line + key;
                #pragma unroll
                for (int i = 0; i < TILE_EIGHTS; i++) {
                    write_scores(j, s[i] + 2 * h, after + i * 8, query, key + i * 8, i * 8 < left, i * 8 + 1 < left);
                }
            }
            #pragma unroll
            for (int i = 0; i < 2 * TILE_EIGHTS; i++) s[i / 2][2 * h + i % 2] *= exponent.sign;
            if (!all) hide(j, s, h, query, n * TILE, -INFINITY_F);
            float most = largest[h];
            #pragma unroll
            for (int i = 0; i < 2 * TILE_EIGHTS; i++) most = fmaxf(most, s[i / 2][2 * h + i % 2]);
            most = largest_of_row(most);
            float base = base_of(most), keep = largest[h] == -INFINITY_F ? 0.0f : exponent.of(largest[h], base), sum = 0;
            largest[h] = most;
            #pragma unroll
            for (int i = 0; i < 2 * TILE_EIGHTS; i++) s[i / 2][2 * h + i % 2] = exponent.of(s[i / 2][2 * h + i % 2], base);
            // Minus infinity times a scale of 0 is not a number.
            if (!all) hide(j, s, h, query, n * TILE, 0.0f);
            #pragma unroll
            for (int i = 0; i < 2 * TILE_EIGHTS; i++) {
                float& y = s[i / 2][2 * h + i % 2];
                sum += y;
                if (DROPS && !(kept[h] >> (i / 2 * 8 + 2 * t + i % 2) & 1)) y = 0;
            }
            total[h] = total[h] * keep + sum;
            #pragma unroll
            for (int i = 0; i < 2 * EIGHTS; i++) o[i / 2][2 * h + i % 2] *= keep;
        }
        add_rows(o, s, v_tiles + n % 2 * TILE * PITCH);
        __syncthreads();
    }
    #pragma unroll
    for (int h = 0; h < 2; h++) {
        float inverse = inverse_of(over_row(total[h]));
        int query = first + g + h * 8;
        if (t == 0 && query < queries) {
            reinterpret_cast<float*>(j.largest)[pair * queries + query] = exponent.sign * largest[h];
            reinterpret_cast<float*>(j.inverse)[pair * queries + query] = inverse;
        }
        if (DROPS) inverse *= (float)j.kept_scale;
        #pragma unroll
        for (int i = 0; i < 2 * EIGHTS; i++) o[i / 2][2 * h + i % 2] *= inverse;
    }
    out.store_rows(q_tile + warp * 16 * PITCH, first, [&](int d, int e) { return o[d][e]; });
}
