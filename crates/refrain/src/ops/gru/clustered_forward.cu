KERNEL(gru_forward, GruArgs, p, CLUSTERS __launch_bounds__(THREADS, 1)) {
    extern __shared__ __align__(32) unsigned char memory[];
    IN* w = reinterpret_cast<IN*>(memory); // [3][UNITS][PADDED]
    C* states = reinterpret_cast<C*>(w + 3 * UNITS * PADDED); // [2][SEQUENCES][PADDED]
    C* sums = states + 2 * SEQUENCES * PADDED; // [3][SEQUENCES][UNITS]
    const int first_unit = (int)block_of_cluster() * UNITS;
    const i64 first = (i64)(blockIdx.x / CLUSTER) * SEQUENCES;
    for (int i = threadIdx.x; i < 3 * UNITS * PADDED; i += THREADS) {
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
    C bias[3] = {};
    #pragma unroll
    for (int g = 0; g < 3; g++) {
        if (mine) bias[g] = to<C>(p.b[g * HIDDEN + unit]);
    }
    cluster_barrier();
    for (i64 t = 0; t < p.steps; t++) {
        const Inputs x = inputs_at(p, first + own, t, unit, inside);
        const C* before = states + (t & 1) * (SEQUENCES * PADDED);
        C* after = states + ((t + 1) & 1) * (SEQUENCES * PADDED);
        C sum[SEQUENCES][3] = {};
        if (row < UNITS) {
            #pragma unroll 2
            for (int c = 4 * part; c < PADDED; c += 4 * PARTS) {
                Four weights[3];
                #pragma unroll
                for (int g = 0; g < 3; g++) weights[g] = widened(w + (g * UNITS + row) * PADDED + c);
                #pragma unroll
                for (int s = 0; s < SEQUENCES; s++) {
                    const Four h = load<4>(before + s * PADDED + c);
                    #pragma unroll
                    for (int g = 0; g < 3; g++) {
                        #pragma unroll
                        for (int l = 0; l < 4; l++) sum[s][g] += weights[g].at[l] * h.at[l];
                    }
                }
            }
        }
        over_parts(sum, part);
        if (row < UNITS && part % (PARTS / SEQUENCES) == 0) {
            #pragma unroll
            for (int g = 0; g < 3; g++) sums[(g * SEQUENCES + part / (PARTS / SEQUENCES)) * UNITS + row] = sum[0][g];
        }
        __syncthreads();
        if (inside) {
            const C* s = sums + own * UNITS + place;
            const C q = s[2 * SEQUENCES * UNITS] + bias[2];
            const Gates g = gates_of(x.r + (s[0] + bias[0]), x.z + (s[SEQUENCES * UNITS] + bias[1]), x.n, q);
            const IN y = next(g, before[own * PADDED + unit]);
            store_everywhere(after + own * PADDED + unit, to<C>(y));
            store_state<1>(p, first + own, t, unit, y, g, 0);
        }
        cluster_barrier();
    }
}
