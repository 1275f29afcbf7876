DEVICE void all_steps(const Args& p) {
    // What each feature adds to the gradient of the state, for each gate.
    __shared__ Four slopes[2][GATES][CHUNKS * PARTS];
    const int unit = threadIdx.x / PARTS, part = threadIdx.x % PARTS;
    const bool inside = unit < HIDDEN;
    const i64 sequence = blockIdx.x;
    Four w[GATES][CHUNKS];
    #pragma unroll
    for (int g = 0; g < GATES; g++) {
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
    for (int i = threadIdx.x; i < 2 * GATES * CHUNKS * PARTS; i += THREADS) slopes[0][0][i] = Four{};
    __syncthreads();
    // The gradients of the state and of what is carried, from later time steps.
    C before = (C)0, carried = (C)0;
    for (i64 t = p.steps - 1; t >= 0; t--) {
        const Kept kept = ahead[0];
        #pragma unroll
        for (int a = 0; a + 1 < AHEAD; a++) ahead[a] = ahead[a + 1];
        ahead[AHEAD - 1] = kept_at(p, sequence, t - AHEAD, unit, inside);
        const C d = kept.dy + before;
        const Slopes s = slopes_of(kept, d, carried);
        Four (&own)[GATES][CHUNKS * PARTS] = slopes[t & 1];
        if (inside) {
            if (part == 0) {
                #pragma unroll
                for (int g = 0; g < GATES; g++) own[g][unit / 4].at[unit % 4] = s.of_state[g];
            }
            store_slopes<PARTS>(p, sequence, t, unit, s, part);
        }
        __syncthreads();
        C sum = dot(w[0], own[0], part);
        #pragma unroll
        for (int g = 1; g < GATES; g++) sum += dot(w[g], own[g], part);
        before = direct(kept, d) + over_parts(sum);
    }
    if (inside && part == 0) store_first(p, sequence, unit, before, carried);
}
