// Images with their channels last, images as rows of pixels, and the weight in the order of the pieces, as they are multiplied.
// Constants, beside those of taps.cu: X_TYPE, DY_TYPE, W_TYPE; X_WIDE, DY_WIDE (pieces of a pixel of either that a block turns); X_ALIGNED,
// DY_ALIGNED (whether as many pixels as a piece has channels can be loaded at once).

constexpr int THREADS = 256, PIECE = 16 / (int)sizeof(IN);

// A number as it is laid out.
DEVICE IN laid_out(IN x) { return FORM == TF32 ? factor(to<COMPUTE>(x)) : x; }
template <typename T> DEVICE IN laid_out(T x) { return factor(to<COMPUTE>(x)); }

// A thread turns PIECE pixels of a piece, as many channels: it reads pixels side by side and stores channels side by side. ACROSS lanes
// have the pieces of a pixel.
template <typename T, int ACROSS, bool ALIGNED> DEVICE void lay_out(const ConvImages& p, u32 block) {
    const u32 groups = (u32)p.groups, pieces = (u32)p.pieces, all = groups * pieces, across = (all + ACROSS - 1) / ACROSS;
    const u32 pixels = (u32)p.pixels, plane = (u32)p.plane, channels = (u32)p.channels, run = block / across;
    const u32 piece = (block - run * across) * ACROSS + threadIdx.x % ACROSS;
    const u32 first = (run * (THREADS / ACROSS) + threadIdx.x / ACROSS) * PIECE;
    if (piece >= all || first >= pixels) return;
    const u32 group = piece / pieces, channel = (piece - group * pieces) * PIECE;
    const T* images = reinterpret_cast<const T*>(p.x);
    auto at = [&](u32 pixel) {
        const u32 image = pixel / plane;
        return images + ((i64)(image * groups + group) * channels + channel) * plane + (pixel - image * plane);
    };
    vec<IN, PIECE> x[PIECE];
    #pragma unroll
    for (int c = 0; c < PIECE; c++) {
        #pragma unroll
        for (int e = 0; e < PIECE; e++) x[c].at[e] = from<IN>((COMPUTE)0);
    }
    if (ALIGNED) {
        const T* from = at(first);
        #pragma unroll
        for (int c = 0; c < PIECE; c++) {
            if (channel + c >= channels) break;
            const vec<T, PIECE> loaded = load<PIECE>(from + (i64)c * plane);
            #pragma unroll
            for (int e = 0; e < PIECE; e++) x[c].at[e] = laid_out(loaded.at[e]);
        }
    } else {
        #pragma unroll
        for (int e = 0; e < PIECE; e++) {
            if (first + e >= pixels) break;
            const T* from = at(first + e);
            #pragma unroll
            for (int c = 0; c < PIECE; c++) if (channel + c < channels) x[c].at[e] = laid_out(from[(i64)c * plane]);
        }
    }
    IN* y = reinterpret_cast<IN*>(p.y) + ((i64)first * all + piece) * PIECE;
    #pragma unroll
    for (int e = 0; e < PIECE; e++) {
        if (!ALIGNED && first + e >= pixels) break;
        vec<IN, PIECE> turned;
        #pragma unroll
        for (int c = 0; c < PIECE; c++) turned.at[c] = x[c].at[e];
        store<PIECE>(y + (i64)e * all * PIECE, turned);
    }
}

// A block lays out RUN pixels of a channel. Their sum, before they are rounded, is a part of a bias's gradient.
constexpr int RUN = 4096;

template <typename T, bool ALIGNED> DEVICE void lay_out_row(const ConvRows& p, u32 block) {
    const u32 runs = (u32)p.runs, channel = block / runs, run = block - channel * runs, plane = (u32)p.plane, pixels = (u32)p.pixels;
    const T* images = reinterpret_cast<const T*>(p.x);
    IN* row = reinterpret_cast<IN*>(p.y) + (i64)channel * p.pitch;
    auto at = [&](u32 pixel) {
        const u32 image = pixel / plane;
        return ((i64)image * p.channels + channel) * p.plane + (pixel - image * plane);
    };
    COMPUTE sum = 0;
    #pragma unroll
    for (int i = 0; i < RUN / THREADS / PIECE; i++) {
        const u32 first = run * RUN + (i * THREADS + threadIdx.x) * PIECE;
        vec<T, PIECE> x;
        #pragma unroll
        for (int e = 0; e < PIECE; e++) x.at[e] = from<T>((COMPUTE)0);
        if (ALIGNED) {
            if (first < pixels) x = load<PIECE>(images + at(first));
        } else {
            #pragma unroll
            for (int e = 0; e < PIECE; e++) if (first + e < pixels) x.at[e] = images[at(first + e)];
        }
        vec<IN, PIECE> rounded;
        #pragma unroll
        for (int e = 0; e < PIECE; e++) {
            sum += to<COMPUTE>(x.at[e]);
            rounded.at[e] = factor(to<COMPUTE>(x.at[e]));
        }
        if (first < p.pitch) store<PIECE>(row + first, rounded);
    }
    if (!p.sums) return;
    sum = block_sum<THREADS>(sum);
    if (threadIdx.x == 0) reinterpret_cast<COMPUTE*>(p.sums)[run * p.channels + channel] = sum;
}

// A block turns eight rows of the weight, of so many channels and taps.
constexpr int ROWS = 8, CHANNELS = 64, MOST_TAPS = 16;
// Taps are a piece apart in the banks: they are stored side by side.
constexpr int TAP = ROWS * CHANNELS + PIECE;
static_assert(MOST_TAPS * (TAP * sizeof(IN) + sizeof(i64)) <= 48 << 10, "a block has so much without asking");

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
    __shared__ __align__(16) IN tile[MOST_TAPS * TAP];
    // Where the pieces of a tap are.
    __shared__ i64 places[MOST_TAPS];
    const ConvSizes& s = p.sizes;
    const int from_channels = (int)s.from_channels, to_channels = (int)s.to_channels, window = (int)(s.kernel[0] * s.kernel[1]);
    const u32 across = (from_channels + CHANNELS - 1) / CHANNELS, down = (to_channels + ROWS - 1) / ROWS;
    const u32 chunks = (window + MOST_TAPS - 1) / MOST_TAPS;
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
        places[threadIdx.x] = ((i64)of * s.groups + group) * p.weight_rows * p.columns + (i_of * wide + j_of) * p.pieces * PIECE;
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

// More registers than four blocks have are taken by numbers that are loaded one by one.
constexpr int RESIDENT = X_ALIGNED && DY_ALIGNED ? 4 : 2;

KERNEL(conv_lay_out, ConvLayOut, p, __launch_bounds__(THREADS, RESIDENT)) {
    u32 block = blockIdx.x;
    if (block < (u32)p.images[0].blocks) return lay_out<X_TYPE, X_WIDE, X_ALIGNED>(p.images[0], block);
    block -= (u32)p.images[0].blocks;
    if (block < (u32)p.images[1].blocks) return lay_out<DY_TYPE, DY_WIDE, DY_ALIGNED>(p.images[1], block);
    block -= (u32)p.images[1].blocks;
    if (block < (u32)p.rows.blocks) return lay_out_row<DY_TYPE, DY_ALIGNED>(p.rows, block);
    lay_out_weight(p, block - (u32)p.rows.blocks);
}
