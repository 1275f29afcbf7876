KERNEL(gru_backward, GruBackwardArgs, p, __launch_bounds__(THREADS)) {
    // What each feature adds to the gradient of the state, for the three gates.
    __shared__ Four slopes[2][3][CHUNKS * PARTS];
    const int unit = threadIdx.x / PARTS, part = threadIdx.x % PARTS;
    const bool inside = unit < HIDDEN;
    const i64 sequence = blockIdx.x;
    Four w[3][CHUNKS];
    #pragma unroll
    for (int g = 0; g < 3; g++) {
        #pragma unroll
        for (int c = 0; c < CHUNKS; c++) {
            #pragma unroll
            for (int l = 0; l < 4; l++) {
                const int row = 4 * (c * PARTS + part) + l;
                w[g][c].at[l] = inside && row < HIDDEN ? weight(p.w[((i64)g * HIDDEN + row) * HIDDEN + unit]) : (C)0;
            }
        }
    }
    Kept ahead[AHEAD];
    #pragma unroll
    for (int a = 0; a < AHEAD; a++) ahead[a] = kept_at(p, sequence, p.steps - 1 - a, unit, inside);
    // Beyond the features there are zeros.
    for (int i = threadIdx.x; i < 2 * 3 * CHUNKS * PARTS; i += THREADS) slopes[0][0][i] = Four{};
    __syncthreads();
    C carried = (C)0;
    for (i64 t = p.steps - 1; t >= 0; t--) {
        const Kept kept = ahead[0];
        #pragma unroll
        for (int a = 0; a + 1 < AHEAD; a++) ahead[a] = ahead[a + 1];
        ahead[AHEAD - 1] = kept_at(p, sequence, t - AHEAD, unit, inside);
        const C d = kept.dy + carried;
        const Slopes s = slopes_of(kept.gates, kept.before, d);
        Four (&own)[3][CHUNKS * PARTS] = slopes[t & 1];
        if (inside) {
            if (part == 0) {
                own[0][unit / 4].at[unit % 4] = s.r;
                own[1][unit / 4].at[unit % 4] = s.z;
                own[2][unit / 4].at[unit % 4] = s.q;
            }
            store_slopes<PARTS>(p, sequence, t, unit, s, part);
        }
        __syncthreads();
        const C sum = dot(w[0], own[0], part) + dot(w[1], own[1], part) + dot(w[2], own[2], part);
        carried = d * kept.gates.z + over_parts(sum);
    }
    if (inside && part == 0) p.dfirst[sequence * HIDDEN + unit] = from<IN>(carried);
}
