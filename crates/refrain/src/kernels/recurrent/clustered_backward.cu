DEVICE void all_steps(const Args& p) {
    extern __shared__ __align__(32) unsigned char memory[];
    // A row has the weights by which this block's feature contributed to a gate of each feature.
    IN* w = reinterpret_cast<IN*>(memory); // [GATES][UNITS][PADDED]
    C* slopes = reinterpret_cast<C*>(w + GATES * UNITS * PADDED); // [2][GATES][SEQUENCES][PADDED]
    C* sums = slopes + 2 * GATES * SEQUENCES * PADDED; // [SEQUENCES][UNITS]
    const int first_unit = (int)block_of_cluster() * UNITS;
    const i64 first = (i64)(blockIdx.x / CLUSTER) * SEQUENCES;
    // Neighbouring threads read neighbouring columns.
    for (int i = threadIdx.x; i < GATES * UNITS * PADDED; i += THREADS) {
        const int row = i % UNITS, unit = first_unit + row, other = i / UNITS % PADDED, g = i / UNITS / PADDED;
        const bool inside = other < HIDDEN && unit < HIDDEN;
        w[(g * UNITS + row) * PADDED + other] = from<IN>(inside ? to<C>(p.w[((i64)g * HIDDEN + other) * HIDDEN + unit]) : (C)0);
    }
    for (int i = threadIdx.x; i < 2 * GATES * SEQUENCES * PADDED; i += THREADS) slopes[i] = (C)0;
    // What this thread has of a product, and of which state it computes the gradient.
    const int part = threadIdx.x % PARTS, row = threadIdx.x / PARTS;
    const int own = threadIdx.x / UNITS, place = threadIdx.x % UNITS, unit = first_unit + place;
    const bool inside = own < SEQUENCES && unit < HIDDEN && first + own < p.batch;
    // The gradients of the state and of what is carried, from later time steps.
    C before = (C)0, carried = (C)0;
    Kept kept = kept_at(p, first + own, p.steps - 1, unit, inside);
    cluster_barrier();
    for (i64 t = p.steps - 1; t >= 0; t--) {
        C* here = slopes + (t & 1) * (GATES * SEQUENCES * PADDED);
        if (inside) {
            const C d = kept.dy + before;
            const Slopes of = slopes_of(kept, d, carried);
            before = direct(kept, d);
            C* to_all = here + own * PADDED + unit;
            #pragma unroll
            for (int g = 0; g < GATES; g++) store_everywhere(to_all + g * SEQUENCES * PADDED, of.of_state[g]);
            store_slopes<1>(p, first + own, t, unit, of, 0);
        }
        cluster_barrier();
        kept = kept_at(p, first + own, t - 1, unit, inside);
        C sum[SEQUENCES][1] = {};
        if (row < UNITS) {
            #pragma unroll 1
            for (int g = 0; g < GATES; g++) {
                const IN* weights = w + (g * UNITS + row) * PADDED;
                const C* of_gate = here + g * SEQUENCES * PADDED;
                #pragma unroll 2
                for (int c = 4 * part; c < PADDED; c += 4 * PARTS) {
                    const Four four = widened(weights + c);
                    #pragma unroll
                    for (int s = 0; s < SEQUENCES; s++) {
                        const Four slope = load<4>(of_gate + s * PADDED + c);
                        #pragma unroll
                        for (int l = 0; l < 4; l++) sum[s][0] += four.at[l] * slope.at[l];
                    }
                }
            }
        }
        over_parts(sum, part);
        if (row < UNITS && part % (PARTS / SEQUENCES) == 0) sums[part / (PARTS / SEQUENCES) * UNITS + row] = sum[0][0];
        __syncthreads();
        if (inside) before += sums[own * UNITS + place];
    }
    if (inside) store_first(p, first + own, unit, before, carried);
}
