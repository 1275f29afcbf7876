// Adds to `ds[s][unit]` what the gradients of the gates of `s` contribute: their product with the weight's columns.
DEVICE void contributions(const Args& p, const C* slopes, C* ds) {
    const int part = threadIdx.x % PARTS;
    for (int first = 0; first < HIDDEN; first += 4 * (THREADS / PARTS)) {
        const int unit = first + 4 * (threadIdx.x / PARTS);
        C sum[SEQUENCES][4] = {};
        #pragma unroll 1
        for (int g = 0; g < GATES; g++) {
            #pragma unroll 4
            for (int row = part; row < HIDDEN; row += PARTS) {
                const Four w = weights(p.w + ((i64)g * HIDDEN + row) * HIDDEN, unit);
                #pragma unroll
                for (int s = 0; s < SEQUENCES; s++) {
                    const C d = slopes[(s * GATES + g) * PADDED + row];
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
                if (part == s && unit + l < HIDDEN) ds[s * PADDED + unit + l] += all;
            }
        }
    }
}

DEVICE void all_steps(const Args& p) {
    // The gradients of the states.
    C* ds = kept_by_block(p.workspace);
    C* slopes = ds + SEQUENCES * PADDED;
    C* carried = slopes + GATES * SEQUENCES * PADDED;
    C nothing = (C)0;
    const int count = sequences(p.batch);
    const i64 first = (i64)blockIdx.x * SEQUENCES;
    for (int i = threadIdx.x; i < KEPT * SEQUENCES * PADDED; i += THREADS) ds[i] = (C)0;
    __syncthreads();
    for (i64 t = p.steps - 1; t >= 0; t--) {
        for (int i = threadIdx.x; i < count * HIDDEN; i += THREADS) {
            const int s = i / HIDDEN, unit = i - s * HIDDEN;
            const Kept kept = kept_at(p, first + s, t, unit, true);
            const C d = kept.dy + ds[s * PADDED + unit];
            const Slopes of = slopes_of(kept, d, CARRIED ? carried[s * PADDED + unit] : nothing);
            ds[s * PADDED + unit] = direct(kept, d);
            #pragma unroll
            for (int g = 0; g < GATES; g++) slopes[(s * GATES + g) * PADDED + unit] = of.of_state[g];
            store_slopes<1>(p, first + s, t, unit, of, 0);
        }
        __syncthreads();
        contributions(p, slopes, ds);
        __syncthreads();
    }
    for (int i = threadIdx.x; i < count * HIDDEN; i += THREADS) {
        const int s = i / HIDDEN, unit = i - s * HIDDEN;
        store_first(p, first + s, unit, ds[s * PADDED + unit], CARRIED ? carried[s * PADDED + unit] : nothing);
    }
}
