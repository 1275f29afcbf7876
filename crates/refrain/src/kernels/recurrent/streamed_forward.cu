// `sums[s][g][unit]` becomes what state `s` contributes to gate g.
DEVICE void contributions(const Args& p, const C* states, C* sums) {
    const int part = threadIdx.x % PARTS;
    // Groups of PARTS threads stay together, because they exchange their sums.
    for (int first = 0; first < HIDDEN; first += THREADS / PARTS) {
        const int unit = first + threadIdx.x / PARTS;
        const bool inside = unit < HIDDEN;
        const W* rows = p.w + (i64)(inside ? unit : 0) * HIDDEN;
        C sum[GATES][SEQUENCES] = {};
        #pragma unroll 2
        for (int at = 4 * part; at < HIDDEN; at += 4 * PARTS) {
            Four w[GATES];
            #pragma unroll
            for (int g = 0; g < GATES; g++) w[g] = weights(rows + (i64)g * HIDDEN * HIDDEN, at);
            #pragma unroll
            for (int s = 0; s < SEQUENCES; s++) {
                const Four h = load<4>(states + s * PADDED + at);
                #pragma unroll
                for (int g = 0; g < GATES; g++) {
                    #pragma unroll
                    for (int l = 0; l < 4; l++) sum[g][s] += w[g].at[l] * h.at[l];
                }
            }
        }
        #pragma unroll
        for (int g = 0; g < GATES; g++) {
            #pragma unroll
            for (int s = 0; s < SEQUENCES; s++) {
                const C all = over_parts(sum[g][s]);
                if (inside && part == s) sums[(s * GATES + g) * PADDED + unit] = all + to<C>(p.b[g * HIDDEN + unit]);
            }
        }
    }
}

DEVICE void all_steps(const Args& p) {
    C* states = kept_by_block(p.workspace);
    C* sums = states + SEQUENCES * PADDED;
    C* carried = CARRIED ? sums + GATES * SEQUENCES * PADDED : states;
    const int count = sequences(p.batch);
    const i64 first = (i64)blockIdx.x * SEQUENCES;
    for (int i = threadIdx.x; i < SEQUENCES * PADDED; i += THREADS) {
        const int s = i / PADDED, unit = i % PADDED;
        const bool inside = s < count && unit < HIDDEN;
        states[i] = inside ? to<C>(p.first[(first + s) * HIDDEN + unit]) : (C)0;
        if (CARRIED) carried[i] = inside ? to<C>(first_carried(p)[(first + s) * HIDDEN + unit]) : (C)0;
    }
    __syncthreads();
    for (i64 t = 0; t < p.steps; t++) {
        contributions(p, states, sums);
        __syncthreads();
        for (int i = threadIdx.x; i < count * HIDDEN; i += THREADS) {
            const int s = i / HIDDEN, unit = i - s * HIDDEN;
            const Inputs x = inputs_at(p.x, p.steps, first + s, t, unit, true);
            C own[GATES];
            #pragma unroll
            for (int g = 0; g < GATES; g++) own[g] = sums[(s * GATES + g) * PADDED + unit];
            const Gates g = gates_of(x, own);
            C& of_unit = carried[s * PADDED + unit];
            const IN y = next(g, of_unit);
            states[s * PADDED + unit] = to<C>(y);
            store_state<1>(p, first + s, t, unit, y, of_unit, g, 0);
        }
        __syncthreads();
    }
}
