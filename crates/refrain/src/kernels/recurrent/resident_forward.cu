DEVICE void all_steps(const Args& p) {
    __shared__ Four states[2][CHUNKS * PARTS];
    const int unit = threadIdx.x / PARTS, part = threadIdx.x % PARTS;
    const bool inside = unit < HIDDEN;
    const i64 sequence = blockIdx.x;
    Four w[GATES][CHUNKS];
    C bias[GATES];
    #pragma unroll
    for (int g = 0; g < GATES; g++) {
        const int row = g * HIDDEN + (inside ? unit : 0);
        bias[g] = to<C>(p.b[row]);
        #pragma unroll
        for (int c = 0; c < CHUNKS; c++) w[g][c] = weights(p.w + (i64)row * HIDDEN, 4 * (c * PARTS + part));
    }
    Inputs ahead[AHEAD];
    #pragma unroll
    for (int a = 0; a < AHEAD; a++) ahead[a] = inputs_at(p.x, p.steps, sequence, a, unit, inside);
    C carried = inside ? to<C>(first_carried(p)[sequence * HIDDEN + unit]) : (C)0;
    // Beyond the features there are zeros.
    for (int i = threadIdx.x; i < 4 * CHUNKS * PARTS; i += THREADS) {
        const C value = i < HIDDEN ? to<C>(p.first[sequence * HIDDEN + i]) : (C)0;
        states[0][i / 4].at[i % 4] = value;
        states[1][i / 4].at[i % 4] = value;
    }
    __syncthreads();
    for (i64 t = 0; t < p.steps; t++) {
        const Inputs x = ahead[0];
        #pragma unroll
        for (int a = 0; a + 1 < AHEAD; a++) ahead[a] = ahead[a + 1];
        ahead[AHEAD - 1] = inputs_at(p.x, p.steps, sequence, t + AHEAD, unit, inside);
        const Four* before = states[t & 1];
        C sums[GATES];
        #pragma unroll
        for (int g = 0; g < GATES; g++) sums[g] = over_parts(dot(w[g], before, part)) + bias[g];
        const Gates g = gates_of(x, sums);
        const IN y = next(g, carried);
        if (inside) {
            if (part == 0) states[(t + 1) & 1][unit / 4].at[unit % 4] = to<C>(y);
            store_state<PARTS>(p, sequence, t, unit, y, carried, g, part);
        }
        __syncthreads();
    }
}
