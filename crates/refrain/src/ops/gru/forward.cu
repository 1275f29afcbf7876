KERNEL(gru_forward, GruArgs, p, __launch_bounds__(THREADS)) {
    __shared__ Four states[2][CHUNKS * PARTS];
    const int unit = threadIdx.x / PARTS, part = threadIdx.x % PARTS;
    const bool inside = unit < HIDDEN;
    const i64 sequence = blockIdx.x;
    Four w[3][CHUNKS];
    C bias[3];
    #pragma unroll
    for (int g = 0; g < 3; g++) {
        const int row = g * HIDDEN + (inside ? unit : 0);
        bias[g] = to<C>(p.b[row]);
        #pragma unroll
        for (int c = 0; c < CHUNKS; c++) w[g][c] = weights(p.w + (i64)row * HIDDEN, 4 * (c * PARTS + part));
    }
    Inputs ahead[AHEAD];
    #pragma unroll
    for (int a = 0; a < AHEAD; a++) ahead[a] = inputs_at(p, sequence, a, unit, inside);
    C h = inside ? to<C>(p.first[sequence * HIDDEN + unit]) : (C)0;
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
        ahead[AHEAD - 1] = inputs_at(p, sequence, t + AHEAD, unit, inside);
        const Four* before = states[t & 1];
        const C r = over_parts(dot(w[0], before, part));
        const C z = over_parts(dot(w[1], before, part));
        const C q = over_parts(dot(w[2], before, part));
        const Gates g = gates_of(x.r + (r + bias[0]), x.z + (z + bias[1]), x.n, q + bias[2]);
        const IN y = next(g, h);
        h = to<C>(y);
        if (inside) {
            if (part == 0) states[(t + 1) & 1][unit / 4].at[unit % 4] = h;
            store_state<PARTS>(p, sequence, t, unit, y, g, part);
        }
        __syncthreads();
    }
}
