// Adds to `carried[s][unit]` what the gradients of the gates of `s` contribute: their product with the weight's columns.
DEVICE void contributions(const GruBackwardArgs& p, const C* slopes, C* carried) {
    const int part = threadIdx.x % PARTS;
    for (int first = 0; first < HIDDEN; first += 4 * (THREADS / PARTS)) {
        const int unit = first + 4 * (threadIdx.x / PARTS);
        C sum[SEQUENCES][4] = {};
        #pragma unroll 1
        for (int g = 0; g < 3; g++) {
            #pragma unroll 4
            for (int row = part; row < HIDDEN; row += PARTS) {
                const Four w = weights(p.w + ((i64)g * HIDDEN + row) * HIDDEN, unit);
                #pragma unroll
                for (int s = 0; s < SEQUENCES; s++) {
                    const C d = slopes[(s * 3 + g) * PADDED + row];
                    #pragma unroll
                    for (int l = 0; l < 4; l++) sum[s][l] += w.at[l] * d;
                }
            }
        }
        #pragma unroll
        for (int s = 0; s < SEQUENCES; s++) {
            #pragma unroll
            for (int l = 0; l < 4; l++) {
                const C all = over_parts(sum[s][l]);
                if (part == s && unit + l < HIDDEN) carried[s * PADDED + unit + l] += all;
            }
        }
    }
}

KERNEL(gru_backward, GruBackwardArgs, p, __launch_bounds__(THREADS)) {
    C* carried = kept_by_block(p.workspace);
    C* slopes = carried + SEQUENCES * PADDED;
    const int count = sequences(p.batch);
    const i64 first = (i64)blockIdx.x * SEQUENCES;
    for (int i = threadIdx.x; i < 4 * SEQUENCES * PADDED; i += THREADS) carried[i] = (C)0;
    __syncthreads();
    for (i64 t = p.steps - 1; t >= 0; t--) {
        for (int i = threadIdx.x; i < count * HIDDEN; i += THREADS) {
            const int s = i / HIDDEN, unit = i - s * HIDDEN;
            const Kept kept = kept_at(p, first + s, t, unit, true);
            const C d = kept.dy + carried[s * PADDED + unit];
            const Slopes of = slopes_of(kept.gates, kept.before, d);
            carried[s * PADDED + unit] = d * kept.gates.z;
            C* own = slopes + s * 3 * PADDED + unit;
            own[0] = of.r;
            own[PADDED] = of.z;
            own[2 * PADDED] = of.q;
            store_slopes<1>(p, first + s, t, unit, of, 0);
        }
        __syncthreads();
        contributions(p, slopes, carried);
        __syncthreads();
    }
    for (int i = threadIdx.x; i < count * HIDDEN; i += THREADS) {
        const int s = i / HIDDEN, unit = i - s * HIDDEN;
        p.dfirst[(first + s) * HIDDEN + unit] = from<IN>(carried[s * PADDED + unit]);
    }
}
