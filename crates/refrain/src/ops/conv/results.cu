// What a block of a convolution writes. Constants: Y_TYPE, BIAS_TYPE, ALIGNED (whether a lane's adjacent
// pixels can be loaded and stored at once), ADDS (whether the result is added to).

// The place of the i-th of a pixel's sums, below zero if it has none. Two sums have one number: twice the place of the first one, plus one
// if there is a second one.
template <int ACROSS> DEVICE i64 place_of(i64 both, int i) {
    if (ACROSS == 1 || both < 0) return both;
    return i && !(both & 1) ? -1 : (both >> 1) + i;
}

// Writes a warp's part of the result: channels of a group from `row` on, and the pixels from `col` on of the block's, whose places in
// the first channel are given. Each has ACROSS sums, side by side. ARGS has where the result and the bias are, and what is done with it.
template <int ACROSS, typename ARGS>
DEVICE void write_results(const ARGS& p, const COMPUTE (*acc)[FRAGS_M][FRAGS_N][4], const i64* places, u32 group, int row, int col) {
    const ConvSizes& s = p.sizes;
    const int lane = threadIdx.x & 31;
    const i64 plane = s.to[0] * s.to[1];
    constexpr int EACH = 4 * ACROSS;
    places += col + (lane & 3) * 4;
    #pragma unroll
    for (int i = 0; i < 2 * FRAGS_M; i++) {
        const int m = row + i * 8 + (lane >> 2);
        if (m >= s.to_channels) continue;
        const COMPUTE bias = p.bias ? to<COMPUTE>(reinterpret_cast<const BIAS_TYPE*>(p.bias)[group * s.to_channels + m]) : (COMPUTE)0;
        #pragma unroll
        for (int l = 0; l < FRAGS_N; l += 2) {
            const i64* at = places + l * 8;
            COMPUTE v[EACH];
            #pragma unroll
            for (int e = 0; e < EACH; e++) v[e] = acc[e % ACROSS][i / 2][l + e / ACROSS / 2][i % 2 * 2 + e / ACROSS % 2] + bias;
            if (ALIGNED) {
                // All pixels follow each other in memory, or there are none.
                if (at[0] < 0) continue;
                Y_TYPE* y = p.y + place_of<ACROSS>(at[0], 0) + m * plane;
                vec<Y_TYPE, EACH> out;
                if (ADDS) {
                    out = load<EACH>(y);
                    #pragma unroll
                    for (int e = 0; e < EACH; e++) v[e] += to<COMPUTE>(out.at[e]);
                }
                #pragma unroll
                for (int e = 0; e < EACH; e++) out.at[e] = from<Y_TYPE>(v[e]);
                store<EACH>(y, out);
                continue;
            }
            #pragma unroll
            for (int e = 0; e < EACH; e++) {
                const i64 place = place_of<ACROSS>(at[e / ACROSS], e % ACROSS);
                if (place < 0) continue;
                Y_TYPE* y = p.y + place + m * plane;
                *y = from<Y_TYPE>(ADDS ? v[e] + to<COMPUTE>(*y) : v[e]);
            }
        }
    }
}
