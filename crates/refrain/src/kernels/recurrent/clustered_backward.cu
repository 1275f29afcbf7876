DEVICE void all_steps(const Args& p) {
    extern __shared__ __align__(32) unsigned char memory[];
    // A row has the weights by which this block's feature contributed to a gate of each feature.
    IN* w = reinterpret_cast<IN*>(memory); // [GATES][UNITS][PADDED], if not in registers
    C* slopes = reinterpret_cast<C*>(w + (IN_REGISTERS ? 0 : GATES * UNITS * PADDED)); // [2][GATES][SEQUENCES][PADDED]
    C* sums = slopes + 2 * GATES * SEQUENCES * PADDED; // [SEQUENCES][UNITS], if not in registers
    const int first_unit = (int)block_of_cluster() * UNITS;
    const i64 first = (i64)(blockIdx.x / CLUSTER) * SEQUENCES;
    // Neighbouring threads read neighbouring columns.
    for (int i = threadIdx.x; !IN_REGISTERS && i < GATES * UNITS * PADDED; i += THREADS) {
        const int row = i % UNITS, unit = first_unit + row, other = i / UNITS % PADDED, g = i / UNITS / PADDED;
        const bool inside = other < HIDDEN && unit < HIDDEN;
        w[(g * UNITS + row) * PADDED + other] = from<IN>(inside ? to<C>(p.w[((i64)g * HIDDEN + other) * HIDDEN + unit]) : (C)0);
    }
    for (int i = threadIdx.x; i < 2 * GATES * SEQUENCES * PADDED; i += THREADS) slopes[i] = (C)0;
    // What this thread has of a product, and of which state it computes the gradient.
    const int part = threadIdx.x % PARTS, row = threadIdx.x / PARTS;
    const int own = own_sequence(part), place = own_place(row), unit = first_unit + place, sharer = part % SHARERS;
    const bool inside = own < SEQUENCES && unit < HIDDEN && first + own < p.batch;
    Four own_weights[GATES][CHUNKS];
    #pragma unroll
    for (int g = 0; IN_REGISTERS && g < GATES; g++) {
        #pragma unroll
        for (int i = 0; i < 4 * CHUNKS; i++) {
            const int column = first_unit + row, other = 4 * (i / 4 * PARTS + part) + i % 4;
            const bool inside = other < HIDDEN && column < HIDDEN;
            own_weights[g][i / 4].at[i % 4] = inside ? weight(p.w[((i64)g * HIDDEN + other) * HIDDEN + column]) : (C)0;
        }
    }
    // The gradients of the state and of what is carried, from later time steps.
    C before = (C)0, carried = (C)0;
    Kept ahead[AHEAD];
    #pragma unroll
    for (int a = 0; a < AHEAD; a++) ahead[a] = kept_at(p, first + own, p.steps - 1 - a, unit, inside);
    cluster_arrive();
    cluster_wait();
    for (i64 t = p.steps - 1; t >= 0; t--) {
        C* here = slopes + (t & 1) * (GATES * SEQUENCES * PADDED);
        Slopes of = {};
        if (inside) {
            const C d = ahead[0].dy + before;
            of = slopes_of(ahead[0], d, carried);
            before = direct(ahead[0], d);
            C* to_all = here + own * PADDED + unit;
            #pragma unroll
            for (int g = 0; g < GATES; g++) store_everywhere<SHARERS>(to_all + g * SEQUENCES * PADDED, of.of_state[g], sharer);
        }
        cluster_arrive();
        if (inside) store_slopes<SHARERS>(p, first + own, t, unit, of, sharer);
        cluster_wait();
        #pragma unroll
        for (int a = 0; a + 1 < AHEAD; a++) ahead[a] = ahead[a + 1];
        ahead[AHEAD - 1] = kept_at(p, first + own, t - AHEAD, unit, inside);
        C sum[SEQUENCES][1] = {}, odd[SEQUENCES] = {};
        if (row < UNITS) {
            #pragma unroll (IN_REGISTERS ? GATES : 1)
            for (int g = 0; g < GATES; g++) {
                const C* of_gate = here + g * SEQUENCES * PADDED;
                #pragma unroll UNROLLED
                for (int i = 0, c = 4 * part; IN_REGISTERS ? i < CHUNKS : c < PADDED; i++, c += 4 * PARTS) {
                    const Four four = IN_REGISTERS ? own_weights[g][i] : widened(w + (g * UNITS + row) * PADDED + c);
                    #pragma unroll
                    for (int s = 0; s < SEQUENCES; s++) {
                        const Four slope = load<4>(of_gate + s * PADDED + c);
                        #pragma unroll
                        for (int l = 0; l < 4; l++) {
                            C& to = IN_REGISTERS && l % 2 ? odd[s] : sum[s][0];
                            to += four.at[l] * slope.at[l];
                        }
                    }
                }
            }
        }
        #pragma unroll
        for (int s = 0; IN_REGISTERS && s < SEQUENCES; s++) sum[s][0] += odd[s];
        over_parts(sum, part);
        if (!IN_REGISTERS) {
            if (row < UNITS && part % COPIES == 0) sums[part / COPIES * UNITS + row] = sum[0][0];
            __syncthreads();
        }
        if (inside) before += IN_REGISTERS ? sum[0][0] : sums[own * UNITS + place];
    }
    if (inside && sharer == 0) store_first(p, first + own, unit, before, carried);
}
