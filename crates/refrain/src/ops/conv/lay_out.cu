// Images with their channels last, and the weight in the order of their pieces, as they are multiplied. Constants, beside those of
// taps.cu: X_TYPE, DY_TYPE, W_TYPE; X_WIDE, DY_WIDE (pieces of a pixel of either that a block turns).

// A block turns ACROSS pieces of TURNED / ACROSS pixels, by way of shared memory. A thread reads eight pixels of a quarter of a piece.
constexpr int TURNED = 512, THREADS = 256, PIECE = 16 / (int)sizeof(IN), QUARTER = PIECE / 4;

// Pieces of a pixel, permuted so that those of pixels at the same place of a run of eight are in different banks.
template <int ACROSS> DEVICE int place_of(int pixel, int piece) { return (pixel * ACROSS + ((piece ^ pixel >> 3) & (ACROSS - 1))) * PIECE; }

// A number of an image as it is laid out. Of TF32, results are not rounded yet.
template <bool OF_RESULTS> DEVICE IN laid_out(IN x) { return FORM == TF32 && !OF_RESULTS ? factor(to<COMPUTE>(x)) : x; }
template <bool OF_RESULTS, typename T> DEVICE IN laid_out(T x) { return FORM == TF32 && OF_RESULTS ? from<IN>(to<COMPUTE>(x)) : factor(to<COMPUTE>(x)); }

template <typename T, int ACROSS, bool OF_RESULTS> DEVICE void lay_out(const ConvImages& p, u32 block, IN* tile) {
    const u32 across = (u32)((p.groups * p.pieces + ACROSS - 1) / ACROSS);
    const u32 tile_of = block / across, first_pixel = tile_of * (TURNED / ACROSS), first_piece = (block - tile_of * across) * ACROSS;
    const u32 groups = (u32)p.groups, all = groups * (u32)p.pieces, plane = (u32)p.plane, pixels = (u32)p.pixels;
    constexpr int RUNS = TURNED / 8 / ACROSS;
    const int quarter = (int)threadIdx.x / RUNS, run = (int)threadIdx.x % RUNS;
    const u32 piece = first_piece + quarter / 4, group = piece / (u32)p.pieces;
    const u32 channel = (piece - group * (u32)p.pieces) * PIECE + quarter % 4 * QUARTER;
    vec<T, 8> x[QUARTER];
    #pragma unroll
    for (int c = 0; c < QUARTER; c++) {
        #pragma unroll
        for (int e = 0; e < 8; e++) x[c].at[e] = from<T>((COMPUTE)0);
        if (piece >= all || channel + c >= (u32)p.channels) continue;
        const u32 first = first_pixel + run * 8;
        const T* images = reinterpret_cast<const T*>(p.x);
        auto at = [&](u32 pixel) {
            const u32 image = pixel / plane;
            return (((i64)image * groups + group) * p.channels + channel + c) * p.plane + (pixel - image * plane);
        };
        if (p.aligned) {
            if (first < pixels) x[c] = load<8>(images + at(first));
        } else {
            #pragma unroll
            for (int e = 0; e < 8; e++) if (first + e < pixels) x[c].at[e] = images[at(first + e)];
        }
    }
    #pragma unroll
    for (int e = 0; e < 8; e++) {
        vec<IN, QUARTER> channels;
        #pragma unroll
        for (int c = 0; c < QUARTER; c++) channels.at[c] = laid_out<OF_RESULTS>(x[c].at[e]);
        store<QUARTER>(tile + place_of<ACROSS>(run * 8 + e, quarter / 4) + quarter % 4 * QUARTER, channels);
    }
    __syncthreads();
    for (int i = threadIdx.x; i < TURNED; i += THREADS) {
        const int pixel = i / ACROSS, of = i % ACROSS;
        if (first_pixel + pixel >= pixels || first_piece + of >= all) continue;
        IN* y = reinterpret_cast<IN*>(p.y) + ((i64)(first_pixel + pixel) * all + first_piece + of) * PIECE;
        store<PIECE>(y, load<PIECE>(tile + place_of<ACROSS>(pixel, of)));
    }
}

// A block turns eight rows of the weight, of so many channels and taps.
constexpr int ROWS = 8, CHANNELS = 64, MOST_TAPS = 16;
// Taps are a piece apart in the banks: they are stored side by side.
constexpr int TAP = ROWS * CHANNELS + PIECE;
constexpr int MEMORY = MOST_TAPS * TAP > TURNED * PIECE ? MOST_TAPS * TAP : TURNED * PIECE;
static_assert(MEMORY * sizeof(IN) + MOST_TAPS * sizeof(i64) <= 48 << 10, "a block has so much without asking");

// The phase of a transposed convolution that a tap is of, and its place there.
DEVICE void tap_of(const ConvSizes& s, int axis, int element, int& phase, int& place) {
    if (!TRANSPOSED) {
        phase = 0, place = element;
        return;
    }
    const int stride = (int)s.stride[axis];
    phase = (int)((element * s.dilation[axis] - s.padding[axis]) % stride);
    phase += phase < 0 ? stride : 0;
    const Taps taps = taps_along(s, axis, phase);
    place = (element - taps.first_tap) / taps.tap_apart;
}

DEVICE void lay_out_weight(const ConvLayOut& p, u32 block, IN* tile) {
    // Where the pieces of a tap are.
    __shared__ i64 places[MOST_TAPS];
    const ConvSizes& s = p.sizes;
    const int from_channels = (int)s.from_channels, to_channels = (int)s.to_channels, window = (int)(s.kernel[0] * s.kernel[1]);
    const u32 across = (from_channels + CHANNELS - 1) / CHANNELS, down = (to_channels + ROWS - 1) / ROWS, chunks = (window + MOST_TAPS - 1) / MOST_TAPS;
    u32 rest = block / across;
    const int first_channel = (int)(block - rest * across) * CHANNELS, first_row = (int)(rest % down) * ROWS;
    rest /= down;
    const int first_tap = (int)(rest % chunks) * MOST_TAPS, group = (int)(rest / chunks), taps = min(window - first_tap, MOST_TAPS);
    const W_TYPE* weight = reinterpret_cast<const W_TYPE*>(p.weight) + (i64)group * to_channels * from_channels * window;
    if (threadIdx.x < taps) {
        const int element = first_tap + (int)threadIdx.x;
        int down_phase, right_phase, i_of, j_of;
        tap_of(s, 0, element / (int)s.kernel[1], down_phase, i_of);
        tap_of(s, 1, element % (int)s.kernel[1], right_phase, j_of);
        const int of = TRANSPOSED ? down_phase * (int)s.stride[1] + right_phase : 0, wide = taps_along(s, 1, right_phase).count;
        places[threadIdx.x] = ((i64)of * s.groups + group) * p.rows * p.columns + (i_of * wide + j_of) * p.pieces * PIECE;
    }
    // In the order of memory: taps of channels of a row, or taps of rows of a channel.
    const int tap_step = THREADS % taps, pair_step = THREADS / taps;
    int pair = (int)threadIdx.x / taps, tap = (int)threadIdx.x % taps;
    #pragma unroll 4
    for (int i = threadIdx.x; i < ROWS * CHANNELS * taps; i += THREADS) {
        const int row = TRANSPOSED ? pair % ROWS : pair / CHANNELS, channel = TRANSPOSED ? pair / ROWS : pair % CHANNELS;
        const int m = first_row + row, k = first_channel + channel;
        const i64 at = TRANSPOSED ? (i64)k * to_channels + m : (i64)m * from_channels + k;
        const bool there = m < to_channels && k < from_channels;
        tile[tap * TAP + row * CHANNELS + channel] = factor(there ? to<COMPUTE>(weight[at * window + first_tap + tap]) : (COMPUTE)0);
        pair += pair_step, tap += tap_step;
        if (tap >= taps) tap -= taps, pair++;
    }
    __syncthreads();
    constexpr int PIECES = CHANNELS / PIECE;
    for (int i = threadIdx.x; i < taps * ROWS * PIECES; i += THREADS) {
        const int piece = i % PIECES, row = i / PIECES % ROWS, of = i / PIECES / ROWS;
        const int at = first_channel / PIECE + piece, m = first_row + row;
        if (at >= p.pieces || m >= to_channels) continue;
        IN* to = reinterpret_cast<IN*>(p.y) + places[of] + m * p.columns + at * PIECE;
        store<PIECE>(to, load<PIECE>(tile + of * TAP + row * CHANNELS + piece * PIECE));
    }
}

KERNEL(conv_lay_out, ConvLayOut, p, __launch_bounds__(THREADS)) {
    __shared__ __align__(16) IN tile[MEMORY];
    u32 block = blockIdx.x;
    if (block < (u32)p.images[0].blocks) return lay_out<X_TYPE, X_WIDE, false>(p.images[0], block, tile);
    block -= (u32)p.images[0].blocks;
    if (block < (u32)p.images[1].blocks) return lay_out<DY_TYPE, DY_WIDE, true>(p.images[1], block, tile);
    lay_out_weight(p, block - (u32)p.images[1].blocks, tile);
}
