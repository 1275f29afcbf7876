// What a block of a convolution writes. Constants: Y_TYPE, BIAS_TYPE, ALIGNED (whether four
// pixels can be loaded and stored at once), ADDS (whether the result is added to).

// Writes a warp's part of the result: channels of a group from `row` on, and the pixels from `col` on of the block's, which lie at `places` in
// the first channel, or nowhere below zero. ARGS has where the result and the bias are, and what is done with it.
template <typename ARGS>
DEVICE void write_results(const ARGS& p, const COMPUTE (*acc)[FRAGS_N][4], const i64* places, u32 group, int row, int col) {
    const ConvSizes& s = p.sizes;
    const int lane = threadIdx.x & 31;
    const i64 plane = s.to[0] * s.to[1];
    places += col + (lane & 3) * 4;
    #pragma unroll
    for (int i = 0; i < 2 * FRAGS_M; i++) {
        const int m = row + i * 8 + (lane >> 2);
        if (m >= s.to_channels) continue;
        const COMPUTE bias = p.bias ? to<COMPUTE>(reinterpret_cast<const BIAS_TYPE*>(p.bias)[group * s.to_channels + m]) : (COMPUTE)0;
        #pragma unroll
        for (int l = 0; l < FRAGS_N; l += 2) {
            const i64* at = places + l * 8;
            COMPUTE v[4];
            #pragma unroll
            for (int e = 0; e < 4; e++) v[e] = acc[i / 2][l + e / 2][i % 2 * 2 + e % 2] + bias;
            if (ALIGNED) {
                // Four pixels follow each other in memory, or there are none.
                if (at[0] < 0) continue;
                Y_TYPE* y = p.y + at[0] + m * plane;
                vec<Y_TYPE, 4> out;
                if (ADDS) {
                    out = load<4>(y);
                    #pragma unroll
                    for (int e = 0; e < 4; e++) v[e] += to<COMPUTE>(out.at[e]);
                }
                #pragma unroll
                for (int e = 0; e < 4; e++) out.at[e] = from<Y_TYPE>(v[e]);
                store<4>(y, out);
                continue;
            }
            #pragma unroll
            for (int e = 0; e < 4; e++) {
                if (at[e] < 0) continue;
                Y_TYPE* y = p.y + at[e] + m * plane;
                *y = from<Y_TYPE>(ADDS ? v[e] + to<COMPUTE>(*y) : v[e]);
            }
        }
    }
}
