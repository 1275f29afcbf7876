// Outputs and the log-sum-exps of the rows of scores; the softmax gathers as keys pass by.

KERNEL __launch_bounds__(256) attention_forward(const __grid_constant__ Job j) {
    Row r = locate(j, j.queries);
    int keys = (int)j.keys, tile = (int)j.tile;
    COMPUTE* k_tiles = reinterpret_cast<COMPUTE*>(memory);
    COMPUTE* v_tiles = k_tiles + j.together * slot_size(j);
    const COMPUTE* k_rows = k_tiles + r.slot * slot_size(j);
    const COMPUTE* v_rows = v_tiles + r.slot * slot_size(j);
    COMPUTE q[EACH], o[EACH];
    take(q, begin(j.q, j, r.pair) + r.row * j.q.token, r.lane, (COMPUTE)j.scale);
    clear(o);
    COMPUTE largest = limits<COMPUTE>::lowest(), total = 0;

    // Later keys are seen by none of the block's queries.
    int end = CAUSAL && j.together == 1 ? min(keys, r.first + (int)blockDim.x / LANES) : keys;
    for (int first = 0; first < end; first += tile) {
        int count = min(tile, end - first);
        if (first > 0) __syncthreads();
        bring_all(k_tiles, j.k, j, first, count);
        bring_all(v_tiles, j.v, j, first, count);
        __syncthreads();
        for (int i = 0; i < count; i += CHUNK) {
            COMPUTE s[CHUNK], top = largest;
            #pragma unroll
            for (int c = 0; c < CHUNK; c++) s[c] = dot(q, k_rows + (i + c) * PADDED, r.lane);
            #pragma unroll
            for (int c = 0; c < CHUNK; c++) {
                s[c] = row_sum(s[c]);
                if (i + c >= count || (CAUSAL && first + i + c > r.row)) s[c] = limits<COMPUTE>::lowest();
                if (s[c] > top) top = s[c];
            }
            // Scores that are all minus infinity so far have no weight.
            COMPUTE shift = top == limits<COMPUTE>::lowest() ? (COMPUTE)0 : top;
            COMPUTE factor = exp_(largest - shift);
            largest = top;
            total *= factor;
            #pragma unroll
            for (int e = 0; e < EACH; e++) o[e] *= factor;
            #pragma unroll
            for (int c = 0; c < CHUNK; c++) {
                COMPUTE p = exp_(s[c] - shift);
                total += p;
                add_times(o, p, v_rows + (i + c) * PADDED, r.lane);
            }
        }
    }
    if (!r.there) return;
    give(result(j.o, j, j.queries, r.pair, r.row), o, r.lane, (COMPUTE)1 / total);
    if (r.lane == 0) reinterpret_cast<COMPUTE*>(j.sums)[r.pair * j.queries + r.row] = largest + log_(total);
}
