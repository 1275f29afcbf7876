// The outputs and the saved statistics of the score rows. The softmax is updated key by key (online softmax).

KERNEL(attention_forward, Job, j, __launch_bounds__(256)) {
    Rows r = locate(j, j.queries);
    i64 first_pair = r.pair - r.slot;
    int keys = (int)j.keys, tile = (int)j.tile, size = slot_size(tile), slots = slots_of(j, first_pair);
    COMPUTE* k_tiles = reinterpret_cast<COMPUTE*>(memory);
    COMPUTE* v_tiles = k_tiles + j.pairs_per_block * size;
    const COMPUTE* k_rows = k_tiles + r.slot * size;
    const COMPUTE* v_rows = v_tiles + r.slot * size;
    COMPUTE q[ROWS][EACH], o[ROWS][EACH], largest[ROWS], total[ROWS];
    #pragma unroll
    for (int w = 0; w < ROWS; w++) {
        take(q[w], row_of(j.q, j, r.pair, r.at(w)), r.lane, (COMPUTE)j.scale);
        clear(o[w]);
        largest[w] = limits<COMPUTE>::lowest();
        total[w] = 0;
    }

    Dropout dropout(j);

    // No query of the block sees later keys. Their scores are 0 if they are handed on.
    int end = CAUSAL && !AFTER && j.pairs_per_block == 1 ? min(keys, r.end + (int)j.past) : keys;
    for (int first = 0; first < end; first += tile) {
        int count = min(tile, end - first);
        if (first > 0) __syncthreads();
        load_tile(k_tiles, size, j.k, j, first_pair, slots, first, count);
        load_tile(v_tiles, size, j.v, j, first_pair, slots, first, count);
        __syncthreads();
        for (int i = 0; i < count; i += CHUNK) {
            COMPUTE s[ROWS][CHUNK], x[EACH];
            #pragma unroll
            for (int c = 0; c < CHUNK; c++) {
                load_row(x, k_rows + (i + c) * PADDED, r.lane);
                #pragma unroll
                for (int w = 0; w < ROWS; w++) s[w][c] = dot(q[w], x);
            }
            #pragma unroll
            for (int w = 0; w < ROWS; w++) {
                COMPUTE top = largest[w];
                #pragma unroll
                for (int c = 0; c < CHUNK; c++) s[w][c] = row_sum(s[w][c]);
                i64 at = score_at(j, r.pair, r.at(w), first + i);
                if (BEFORE) {
                    COMPUTE before[CHUNK];
                    load_scores(before, before_of(j, r.pair, r.at(w)) + first + i, count - i);
                    #pragma unroll
                    for (int c = 0; c < CHUNK; c++) s[w][c] += before[c];
                }
                if (AFTER && w < r.there && r.lane == 0) {
                    COMPUTE after[CHUNK];
                    #pragma unroll
                    for (int c = 0; c < CHUNK; c++) after[c] = is_before(j, first + i + c, r.row + w) ? s[w][c] : (COMPUTE)0;
                    store_scores(j.after + at, after, count - i);
                }
                #pragma unroll
                for (int c = 0; c < CHUNK; c++) {
                    if (i + c >= count || !is_before(j, first + i + c, r.row + w)) s[w][c] = limits<COMPUTE>::lowest();
                    if (s[w][c] > top) top = s[w][c];
                }
                // Scores that are all minus infinity so far have no weight.
                COMPUTE shift = top == limits<COMPUTE>::lowest() ? (COMPUTE)0 : top;
                COMPUTE factor = exp_(largest[w] - shift);
                largest[w] = top;
                total[w] *= factor;
                #pragma unroll
                for (int e = 0; e < EACH; e++) o[w][e] *= factor;
                #pragma unroll
                for (int c = 0; c < CHUNK; c++) {
                    s[w][c] = exp_(s[w][c] - shift);
                    total[w] += s[w][c];
                }
                if (DROPS) {
                    u32 kept = dropout.bits<CHUNK>(row_at(j, r.pair, r.at(w)), first + i);
                    #pragma unroll
                    for (int c = 0; c < CHUNK; c++) if (!(kept >> c & 1)) s[w][c] = 0;
                }
            }
            #pragma unroll
            for (int c = 0; c < CHUNK; c++) {
                load_row(x, v_rows + (i + c) * PADDED, r.lane);
                #pragma unroll
                for (int w = 0; w < ROWS; w++) add_times(o[w], s[w][c], x);
            }
        }
    }
    #pragma unroll
    for (int w = 0; w < ROWS; w++) {
        if (w < r.there) {
            COMPUTE inverse = inverse_of(total[w]);
            COMPUTE factor = DROPS ? inverse * (COMPUTE)j.kept_scale : inverse;
            store_tile(row_of(j.o, j, r.pair, r.row + w), o[w], r.lane, factor);
            if (r.lane == 0) {
                i64 at = r.pair * j.queries + r.row + w;
                reinterpret_cast<COMPUTE*>(j.largest)[at] = largest[w];
                reinterpret_cast<COMPUTE*>(j.inverse)[at] = inverse;
            }
        }
    }
}
