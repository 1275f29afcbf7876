// Images with their channels last, and the weight in the order of their pieces, as they are multiplied. Constants, beside those of
// taps.cu: X_TYPE, DY_TYPE, W_TYPE; X_WIDE, DY_WIDE (pieces of a pixel of either that a block turns).

// A block turns ACROSS pieces of TURNED / ACROSS pixels, by way of shared memory.
constexpr int TURNED = 512, THREADS = 256;

// Pieces of a pixel, permuted so that those of pixels at the same place of a run of eight are in different banks.
template <int ACROSS> DEVICE int place_of(int pixel, int piece) { return (pixel * ACROSS + ((piece ^ pixel >> 3) & (ACROSS - 1))) * 8; }

DEVICE IN rounded(IN x) { return x; }
template <typename T> DEVICE IN rounded(T x) { return factor(to<COMPUTE>(x)); }

template <typename T, int ACROSS> DEVICE void lay_out(const ConvImages& p, u32 block) {
    __shared__ __align__(16) IN tile[TURNED * 8];
    const u32 across = (u32)((p.groups * p.pieces + ACROSS - 1) / ACROSS);
    const u32 tile_of = block / across, first_pixel = tile_of * (TURNED / ACROSS), first_piece = (block - tile_of * across) * ACROSS;
    const u32 groups = (u32)p.groups, all = groups * (u32)p.pieces, plane = (u32)p.plane, pixels = (u32)p.pixels;
    // A thread reads eight pixels of two channels.
    constexpr int RUNS = TURNED / 8 / ACROSS;
    const int pair = (int)threadIdx.x / RUNS, run = (int)threadIdx.x % RUNS;
    const u32 piece = first_piece + pair / 4, group = piece / (u32)p.pieces, channel = (piece - group * (u32)p.pieces) * 8 + pair % 4 * 2;
    vec<T, 8> x[2];
    #pragma unroll
    for (int c = 0; c < 2; c++) {
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
        vec<IN, 2> both;
        both.at[0] = rounded(x[0].at[e]);
        both.at[1] = rounded(x[1].at[e]);
        store<2>(tile + place_of<ACROSS>(run * 8 + e, pair / 4) + pair % 4 * 2, both);
    }
    __syncthreads();
    for (int i = threadIdx.x; i < TURNED; i += THREADS) {
        const int pixel = i / ACROSS, of = i % ACROSS;
        if (first_pixel + pixel >= pixels || first_piece + of >= all) continue;
        IN* y = reinterpret_cast<IN*>(p.y) + ((i64)(first_pixel + pixel) * all + first_piece + of) * 8;
        store<8>(y, load<8>(tile + place_of<ACROSS>(pixel, of)));
    }
}

// A block turns eight rows of the weight, of so many channels and taps.
constexpr int ROWS = 8, CHANNELS = 64, MOST_TAPS = 16;

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

DEVICE void lay_out_weight(const ConvLayOut& p, u32 block) {
    __shared__ __align__(16) IN tile[MOST_TAPS][ROWS][CHANNELS];
    const ConvSizes& s = p.sizes;
    const int from_channels = (int)s.from_channels, to_channels = (int)s.to_channels, window = (int)(s.kernel[0] * s.kernel[1]);
    const u32 across = (from_channels + CHANNELS - 1) / CHANNELS, down = (to_channels + ROWS - 1) / ROWS, chunks = (window + MOST_TAPS - 1) / MOST_TAPS;
    u32 rest = block / across;
    const int first_channel = (int)(block - rest * across) * CHANNELS, first_row = (int)(rest % down) * ROWS;
    rest /= down;
    const int first_tap = (int)(rest % chunks) * MOST_TAPS, group = (int)(rest / chunks), taps = min(window - first_tap, MOST_TAPS);
    const W_TYPE* weight = reinterpret_cast<const W_TYPE*>(p.weight) + (i64)group * to_channels * from_channels * window;
    // In the order of memory: taps of channels of a row, or taps of rows of a channel.
    for (int i = threadIdx.x; i < ROWS * CHANNELS * taps; i += THREADS) {
        const int pair = i / taps, tap = i - pair * taps;
        const int row = TRANSPOSED ? pair % ROWS : pair / CHANNELS, channel = TRANSPOSED ? pair / ROWS : pair % CHANNELS;
        const int m = first_row + row, k = first_channel + channel;
        const i64 at = TRANSPOSED ? (i64)k * to_channels + m : (i64)m * from_channels + k;
        tile[tap][row][channel] = factor(m < to_channels && k < from_channels ? to<COMPUTE>(weight[at * window + first_tap + tap]) : (COMPUTE)0);
    }
    __syncthreads();
    const int pieces = (int)p.pieces, across_phases = TRANSPOSED ? (int)s.stride[1] : 1;
    for (int i = threadIdx.x; i < taps * ROWS * (CHANNELS / 8); i += THREADS) {
        const int piece = i % (CHANNELS / 8), row = i / (CHANNELS / 8) % ROWS, tap = i / (CHANNELS / 8) / ROWS;
        const int at = first_channel / 8 + piece, m = first_row + row, element = first_tap + tap;
        if (at >= pieces || m >= to_channels) continue;
        int down_phase, right_phase, i_of, j_of;
        tap_of(s, 0, element / (int)s.kernel[1], down_phase, i_of);
        tap_of(s, 1, element % (int)s.kernel[1], right_phase, j_of);
        const int of = down_phase * across_phases + right_phase, wide = taps_along(s, 1, right_phase).count;
        IN* to = reinterpret_cast<IN*>(p.y) + (((i64)of * s.groups + group) * p.rows + m) * p.columns;
        store<8>(to + ((i_of * wide + j_of) * pieces + at) * 8, load<8>(&tile[tap][row][piece * 8]));
    }
}

KERNEL(conv_lay_out, ConvLayOut, p, __launch_bounds__(THREADS)) {
    u32 block = blockIdx.x;
    if (block < (u32)p.images[0].blocks) return lay_out<X_TYPE, X_WIDE>(p.images[0], block);
    block -= (u32)p.images[0].blocks;
    if (block < (u32)p.images[1].blocks) return lay_out<DY_TYPE, DY_WIDE>(p.images[1], block);
    lay_out_weight(p, block - (u32)p.images[1].blocks);
}
