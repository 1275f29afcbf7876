DEVICE void all_steps(const Args& p) {
    extern __shared__ __align__(32) unsigned char memory[];
    IN* w = reinterpret_cast<IN*>(memory); // [GATES][UNITS][PADDED]
    C* states = reinterpret_cast<C*>(w + GATES * UNITS * PADDED); // [2][SEQUENCES][PADDED]
    C* sums = states + 2 * SEQUENCES * PADDED; // [GATES][SEQUENCES][UNITS]
    const int first_unit = (int)block_of_cluster() * UNITS;
    const i64 first = (i64)(blockIdx.x / CLUSTER) * SEQUENCES;
    for (int i = threadIdx.x; i < GATES * UNITS * PADDED; i += THREADS) {
        const int column = i % PADDED, row = i / PADDED, g = row / UNITS, unit = first_unit + row % UNITS;
        const bool inside = column < HIDDEN && unit < HIDDEN;
        w[i] = from<IN>(inside ? to<C>(p.w[((i64)g * HIDDEN + unit) * HIDDEN + column]) : (C)0);
    }
    for (int i = threadIdx.x; i < SEQUENCES * PADDED; i += THREADS) {
        const int unit = i % PADDED;
        const i64 s = first + i / PADDED;
        states[i] = s < p.batch && unit < HIDDEN ? to<C>(p.first[s * HIDDEN + unit]) : (C)0;
        states[i + SEQUENCES * PADDED] = (C)0;
    }
    // What this thread has of a product, and which state it computes.
    const int part = threadIdx.x % PARTS, row = threadIdx.x / PARTS;
    const int own = threadIdx.x / UNITS, place = threadIdx.x % UNITS, unit = first_unit + place;
    const bool mine = own < SEQUENCES && unit < HIDDEN, inside = mine && first + own < p.batch;
    C bias[GATES] = {};
    #pragma unroll
    for (int g = 0; g < GATES; g++) {
        if (mine) bias[g] = to<C>(p.b[g * HIDDEN + unit]);
    }
    C carried = inside ? to<C>(first_carried(p)[(first + own) * HIDDEN + unit]) : (C)0;
    cluster_barrier();
    for (i64 t = 0; t < p.steps; t++) {
        const Inputs x = inputs_at(p.x, p.steps, first + own, t, unit, inside);
        const C* before = states + (t & 1) * (SEQUENCES * PADDED);
        C* after = states + ((t + 1) & 1) * (SEQUENCES * PADDED);
        C sum[SEQUENCES][GATES] = {};
        if (row < UNITS) {
            #pragma unroll 2
            for (int c = 4 * part; c < PADDED; c += 4 * PARTS) {
                Four weights[GATES];
                #pragma unroll
                for (int g = 0; g < GATES; g++) weights[g] = widened(w + (g * UNITS + row) * PADDED + c);
                #pragma unroll
                for (int s = 0; s < SEQUENCES; s++) {
                    const Four h = load<4>(before + s * PADDED + c);
                    #pragma unroll
                    for (int g = 0; g < GATES; g++) {
                        #pragma unroll
                        for (int l = 0; l < 4; l++) sum[s][g] += weights[g].at[l] * h.at[l];
                    }
                }
            }
        }
        over_parts(sum, part);
        if (row < UNITS && part % (PARTS / SEQUENCES) == 0) {
            #pragma unroll
            for (int g = 0; g < GATES; g++) sums[(g * SEQUENCES + part / (PARTS / SEQUENCES)) * UNITS + row] = sum[0][g];
        }
        __syncthreads();
        if (inside) {
            C all[GATES];
            #pragma unroll
            for (int g = 0; g < GATES; g++) all[g] = sums[(g * SEQUENCES + own) * UNITS + place] + bias[g];
            const Gates g = gates_of(x, all);
            const IN y = next(g, carried);
            store_everywhere(after + own * PADDED + unit, to<C>(y));
            store_state<1>(p, first + own, t, unit, y, carried, g, 0);
        }
        cluster_barrier();
    }
}
