// `sums[s][g][unit]` becomes what state `s` contributes to gate g.
DEVICE void contributions(const GruArgs& p, const C* states, C* sums) {
    const int part = threadIdx.x % PARTS;
    // Groups of PARTS threads stay together, because they exchange their sums.
    for (int first = 0; first < HIDDEN; first += THREADS / PARTS) {
        const int unit = first + threadIdx.x / PARTS;
        const bool inside = unit < HIDDEN;
        const W* rows = p.w + (i64)(inside ? unit : 0) * HIDDEN;
        C sum[3][SEQUENCES] = {};
        #pragma unroll 2
        for (int at = 4 * part; at < HIDDEN; at += 4 * PARTS) {
            Four w[3];
            #pragma unroll
            for (int g = 0; g < 3; g++) w[g] = weights(rows + (i64)g * HIDDEN * HIDDEN, at);
            #pragma unroll
            for (int s = 0; s < SEQUENCES; s++) {
                const Four h = load<4>(states + s * PADDED + at);
                #pragma unroll
                for (int g = 0; g < 3; g++) {
                    #pragma unroll
                    for (int l = 0; l < 4; l++) sum[g][s] += w[g].at[l] * h.at[l];
                }
            }
        }
        #pragma unroll
        for (int g = 0; g < 3; g++) {
            #pragma unroll
            for (int s = 0; s < SEQUENCES; s++) {
                const C all = over_parts(sum[g][s]);
                if (inside && part == s) sums[(s * 3 + g) * PADDED + unit] = all + to<C>(p.b[g * HIDDEN + unit]);
            }
        }
    }
}

KERNEL(gru_forward, GruArgs, p, __launch_bounds__(THREADS)) {
    C* states = kept_by_block(p.workspace);
    C* sums = states + SEQUENCES * PADDED;
    const int count = sequences(p.batch);
    const i64 first = (i64)blockIdx.x * SEQUENCES;
    for (int i = threadIdx.x; i < SEQUENCES * PADDED; i += THREADS) {
        const int s = i / PADDED, unit = i % PADDED;
        states[i] = s < count && unit < HIDDEN ? to<C>(p.first[(first + s) * HIDDEN + unit]) : (C)0;
    }
    __syncthreads();
    for (i64 t = 0; t < p.steps; t++) {
        contributions(p, states, sums);
        __syncthreads();
        for (int i = threadIdx.x; i < count * HIDDEN; i += THREADS) {
            const int s = i / HIDDEN, unit = i - s * HIDDEN;
            const Inputs x = inputs_at(p, first + s, t, unit, true);
            const C* own = sums + s * 3 * PADDED + unit;
            const Gates g = gates_of(x.r + own[0], x.z + own[PADDED], x.n, own[2 * PADDED]);
            const IN y = next(g, states[s * PADDED + unit]);
            states[s * PADDED + unit] = to<C>(y);
            store_state<1>(p, first + s, t, unit, y, g, 0);
        }
        __syncthreads();
    }
}
