// The weight of a convolution as it is multiplied: for each channel of the result a row of taps, each of the source's channels, filled with
// zeros up to whole pieces. Constants, beside those of forms.cu: TRANSPOSED (of a transposed convolution), W_TYPE.

constexpr int THREADS = 256, PIECE = 16 / (int)sizeof(IN);
// A block turns some rows of so many channels and taps.
constexpr int ROWS = 4, CHANNELS = 64, MOST_TAPS = 16;
// Taps are a piece apart in the banks: they are stored side by side.
constexpr int TAP = ROWS * CHANNELS + PIECE;
static_assert(ROWS * CHANNELS == THREADS, "a thread loads as many numbers as there are taps");
static_assert(MOST_TAPS * TAP * sizeof(IN) <= 48 << 10, "a block has so much without asking");

KERNEL(conv_lay_out_weight, ConvWeight, p, __launch_bounds__(THREADS)) {
    __shared__ __align__(16) IN tile[MOST_TAPS * TAP];
    const int channels = (int)p.channels, rows = (int)p.rows, window = (int)p.taps;
    const u32 across = (channels + CHANNELS - 1) / CHANNELS, down = (rows + ROWS - 1) / ROWS;
    const u32 chunks = (window + MOST_TAPS - 1) / MOST_TAPS;
    u32 rest = blockIdx.x / across;
    const int first_channel = (int)(blockIdx.x - rest * across) * CHANNELS, first_row = (int)(rest % down) * ROWS;
    rest /= down;
    const int first_tap = (int)(rest % chunks) * MOST_TAPS, taps = min(window - first_tap, MOST_TAPS);
    const i64 group = rest / chunks;
    const W_TYPE* weight = p.weight + group * rows * channels * window + first_tap;
    // In the order of memory: taps of channels of a row, or taps of rows of a channel. Many loads are on their way at a time.
    const int tap_step = THREADS % taps, pair_step = THREADS / taps;
    int pair = (int)threadIdx.x / taps, tap = (int)threadIdx.x % taps;
    #pragma unroll 9
    for (int i = 0; i < taps; i++) {
        const int row = TRANSPOSED ? pair % ROWS : pair / CHANNELS, channel = TRANSPOSED ? pair / ROWS : pair % CHANNELS;
        const int m = first_row + row, k = first_channel + channel;
        const i64 at = TRANSPOSED ? (i64)k * rows + m : (i64)m * channels + k;
        const bool there = m < rows && k < channels;
        tile[tap * TAP + row * CHANNELS + channel] = factor(there ? to<COMPUTE>(weight[at * window + tap]) : (COMPUTE)0);
        pair += pair_step, tap += tap_step;
        if (tap >= taps) tap -= taps, pair++;
    }
    __syncthreads();
    constexpr int PIECES = CHANNELS / PIECE;
    for (int i = threadIdx.x; i < taps * ROWS * PIECES; i += THREADS) {
        const int piece = i % PIECES, of = i / PIECES % taps, row = i / PIECES / taps;
        const int at = first_channel + piece * PIECE, m = first_row + row;
        if (at >= p.padded || m >= rows) continue;
        IN* to = p.y + ((group * rows + m) * window + first_tap + of) * p.padded + at;
        store<PIECE>(to, load<PIECE>(tile + of * TAP + row * CHANNELS + piece * PIECE));
    }
}
