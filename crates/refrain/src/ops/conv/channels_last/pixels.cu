// What a block of a convolution writes if the result has its channels last. Constants: those of results.cu, where ALIGNED is whether a piece
// of a pixel's channels can be stored at once; LAST (whether the channels come last).

#if LAST
static_assert(!ADDS, "nothing is added to such results");
// Numbers pass through shared memory as they are stored.
constexpr int STORED = 16 / (int)sizeof(Y_TYPE), HELD_PITCH = TILE_M + STORED;

// Holds four neighbouring pixels of a channel. Lanes that are four apart have neighbouring channels.
DEVICE void hold(Y_TYPE* tile, const vec<Y_TYPE, 4>& v) {
    if constexpr (sizeof(Y_TYPE) == 2) {
        // Two lanes exchange pixels, so that each has both channels of two pixels.
        const vec<u32, 2> own = *reinterpret_cast<const vec<u32, 2>*>(&v);
        const bool is_odd = threadIdx.x & 4;
        const u32 kept = is_odd ? own.at[1] : own.at[0], other = __shfl_xor_sync(FULL, is_odd ? own.at[0] : own.at[1], 4);
        const u32 even = is_odd ? other : kept, odd = is_odd ? kept : other;
        u32* to = reinterpret_cast<u32*>(tile + (is_odd ? 2 * HELD_PITCH - 1 : 0));
        to[0] = __byte_perm(even, odd, 0x5410);
        to[HELD_PITCH / 2] = __byte_perm(even, odd, 0x7632);
    } else {
        #pragma unroll
        for (int e = 0; e < 4; e++) tile[e * HELD_PITCH] = v.at[e];
    }
}

// Writes the channels of a group from `first` on of the block's pixels, whose places in the first channel are given. Each has ACROSS sums, of
// neighbouring pixels.
template <int ACROSS, typename ARGS>
DEVICE void write_pixels(
    const ARGS& p, const COMPUTE (*acc)[FRAGS_M][FRAGS_N][4], const i64* places, u32 group, int first, unsigned char* memory
) {
    static_assert(TILE_N * HELD_PITCH * sizeof(Y_TYPE) <= STAGES * STAGE_BYTES, "the numbers of a phase find room");
    const ConvSizes& s = p.sizes;
    const int lane = threadIdx.x & 31, row = first_row() + (lane >> 2), column = first_column() + (lane & 3) * 4;
    Y_TYPE* tile = reinterpret_cast<Y_TYPE*>(memory);
    #pragma unroll
    for (int q = 0; q < ACROSS; q++) {
        if (q > 0) __syncthreads();
        #pragma unroll
        for (int i = 0; i < 2 * FRAGS_M; i++) {
            const int at = row + i * 8, m = first + at;
            const bool has_bias = p.bias && m < s.to_channels;
            const COMPUTE bias = has_bias ? to<COMPUTE>(reinterpret_cast<const BIAS_TYPE*>(p.bias)[group * s.to_channels + m]) : (COMPUTE)0;
            #pragma unroll
            for (int l = 0; l < FRAGS_N; l += 2) {
                vec<Y_TYPE, 4> v;
                #pragma unroll
                for (int e = 0; e < 4; e++) v.at[e] = from<Y_TYPE>(acc[q][i / 2][l + e / 2][i % 2 * 2 + e % 2] + bias);
                hold(tile + (column + l * 8) * HELD_PITCH + at, v);
            }
        }
        __syncthreads();
        constexpr int PIECES = TILE_M / STORED;
        #pragma unroll 4
        for (int i = threadIdx.x; i < TILE_N * PIECES; i += BLOCK_THREADS) {
            const int pixel = i / PIECES, at = i % PIECES * STORED, there = (int)s.to_channels - first - at;
            const i64 both = places[pixel];
            // Two neighbours have one place, as `place_of` reads it.
            if (both < 0 || q > 0 && !(both & 1) || there <= 0) continue;
            Y_TYPE* y = p.y + (ACROSS == 1 ? both : (both >> 1) + q * s.groups * s.to_channels) + first + at;
            const vec<Y_TYPE, STORED> v = load<STORED>(tile + pixel * HELD_PITCH + at);
            if (ALIGNED) {
                store<STORED>(y, v);
                continue;
            }
            #pragma unroll
            for (int c = 0; c < STORED; c++) if (c < there) y[c] = v.at[c];
        }
    }
}
#endif
