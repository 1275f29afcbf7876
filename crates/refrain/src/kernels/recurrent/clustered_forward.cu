DEVICE void all_steps(const Args& p) {
    extern __shared__ __align__(32) unsigned char memory[];
    IN* w = reinterpret_cast<IN*>(memory); // [GATES][UNITS][PADDED], if not in registers
    C* states = reinterpret_cast<C*>(w + (IN_REGISTERS ? 0 : GATES * UNITS * PADDED)); // [2][SEQUENCES][PADDED]
    C* sums = states + 2 * SEQUENCES * PADDED; // [GATES][SEQUENCES][UNITS], if not in registers
    const int first_unit = (int)block_of_cluster() * UNITS;
    const i64 first = (i64)(blockIdx.x / CLUSTER) * SEQUENCES;
    for (int i = threadIdx.x; !IN_REGISTERS && i < GATES * UNITS * PADDED; i += THREADS) {
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
    const int own = own_sequence(part), place = own_place(row), unit = first_unit + place, sharer = part % SHARERS;
    const bool mine = own < SEQUENCES && unit < HIDDEN, inside = mine && first + own < p.batch;
    Four own_weights[GATES][CHUNKS];
    #pragma unroll
    for (int g = 0; IN_REGISTERS && g < GATES; g++) {
        const i64 of_row = (i64)g * HIDDEN + first_unit + row;
        #pragma unroll
        for (int i = 0; i < CHUNKS; i++) {
            own_weights[g][i] = first_unit + row < HIDDEN ? weights(p.w + of_row * HIDDEN, 4 * (i * PARTS + part)) : Four{};
        }
    }
    C bias[GATES] = {};
    #pragma unroll
    for (int g = 0; g < GATES; g++) {
        if (mine) bias[g] = to<C>(p.b[g * HIDDEN + unit]);
    }
    C carried = inside ? to<C>(first_carried(p)[(first + own) * HIDDEN + unit]) : (C)0;
    Inputs ahead[AHEAD];
    #pragma unroll
    for (int a = 0; a + 1 < AHEAD; a++) ahead[a + 1] = inputs_at(p.x, p.steps, first + own, a, unit, inside);
    cluster_arrive();
    cluster_wait();
    for (i64 t = 0; t < p.steps; t++) {
        #pragma unroll
        for (int a = 0; a + 1 < AHEAD; a++) ahead[a] = ahead[a + 1];
        ahead[AHEAD - 1] = inputs_at(p.x, p.steps, first + own, t + AHEAD - 1, unit, inside);
        const C* before = states + (t & 1) * (SEQUENCES * PADDED);
        C* after = states + ((t + 1) & 1) * (SEQUENCES * PADDED);
        C sum[SEQUENCES][GATES] = {};
        if (row < UNITS) {
            #pragma unroll UNROLLED
            for (int i = 0, c = 4 * part; IN_REGISTERS ? i < CHUNKS : c < PADDED; i++, c += 4 * PARTS) {
                Four four[GATES];
                #pragma unroll
                for (int g = 0; g < GATES; g++) {
                    four[g] = IN_REGISTERS ? own_weights[g][i] : widened(w + (g * UNITS + row) * PADDED + c);
                }
                #pragma unroll
                for (int s = 0; s < SEQUENCES; s++) {
                    const Four h = load<4>(before + s * PADDED + c);
                    #pragma unroll
                    for (int g = 0; g < GATES; g++) {
                        #pragma unroll
                        for (int l = 0; l < 4; l++) sum[s][g] += four[g].at[l] * h.at[l];
                    }
                }
            }
        }
        over_parts(sum, part);
        if (!IN_REGISTERS) {
            #pragma unroll
            for (int g = 0; g < GATES; g++) {
                if (row < UNITS && part % COPIES == 0) sums[(g * SEQUENCES + part / COPIES) * UNITS + row] = sum[0][g];
            }
            __syncthreads();
        }
        IN y = {};
        Gates gates = {};
        if (inside) {
            C all[GATES];
            #pragma unroll
            for (int g = 0; g < GATES; g++) {
                all[g] = (IN_REGISTERS ? sum[0][g] : sums[(g * SEQUENCES + own) * UNITS + place]) + bias[g];
            }
            gates = gates_of(ahead[0], all);
            y = next(gates, carried);
            store_everywhere<SHARERS>(after + own * PADDED + unit, to<C>(y), sharer);
        }
        cluster_arrive();
        if (inside) store_state<SHARERS>(p, first + own, t, unit, y, carried, gates, sharer);
        cluster_wait();
    }
}
