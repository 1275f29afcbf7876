// The gradient of a convolution's weight from images with their channels last, summed over the pixels of the result: A has a row for each
// number of a window, B a column for each channel of the result. A block sums a part of the pixels; `conv_sum_parts` adds the parts in
// their order. Constants: those of tiles.cu; MEMORY_BYTES; IN_PLACE (whether the results are read where they lie); BIAS (whether the sums
// of B's columns are the bias's gradient).

constexpr int PER_A = TILE_M / PIECE, SWEEP_A = BLOCK_THREADS / PER_A, EACH_A = TILE_K / SWEEP_A;
// Results have their channels last; or they are rows of the pixels of all images, or, in place, of each image.
constexpr int PER_B = TileB::LINE / PIECE, SWEEP_B = BLOCK_THREADS / PER_B, EACH_B = TileB::LINES / SWEEP_B;
static_assert(STAGES * STAGE_BYTES == MEMORY_BYTES, "the shared memory of the launch");
static_assert(SWEEP_A % TileA::ALIKE == 0 && SWEEP_B % TileB::ALIKE == 0, "a thread's lines");
static_assert(!IN_PLACE || B_ALONG_K, "images have the pixels of a channel side by side");

// The sums of B's columns.
#if BIAS && B_ALONG_K
// A thread's parts of them, of the pieces that it copied.
struct Sums {
    COMPUTE v[EACH_B];
    DEVICE Sums() {
        #pragma unroll
        for (int l = 0; l < EACH_B; l++) v[l] = 0;
    }
    DEVICE void add(const IN* b) {
        #pragma unroll
        for (int l = 0; l < EACH_B; l++) {
            const int first = TileB::place(threadIdx.x / PER_B, threadIdx.x % PER_B * PIECE);
            const vec<IN, PIECE> x = load<PIECE>(b + first + l * SWEEP_B * TileB::PITCH);
            #pragma unroll
            for (int i = 0; i < PIECE; i++) v[l] += to<COMPUTE>(x.at[i]);
        }
    }
    template <typename STORE> DEVICE void finish(unsigned char*, STORE store) const {
        #pragma unroll
        for (int l = 0; l < EACH_B; l++) {
            const COMPUTE sum = warp_reduce<PER_B>(v[l], Add());
            if (threadIdx.x % PER_B == 0) store((int)threadIdx.x / PER_B + l * SWEEP_B, sum);
        }
    }
};
#else
struct Sums : SumsAlongK<TileB> {
    static_assert(!BIAS || BYTES <= STAGES * STAGE_BYTES, "the block's sums find room");
    template <typename STORE> DEVICE void finish(unsigned char* memory, STORE store) const {
        const COMPUTE sum = whole(memory);
        if (threadIdx.x < TILE_N) store((int)threadIdx.x, sum);
    }
};
#endif

// How a tap's source pixels follow each other, for every TILE_K-th pixel of the result.
struct Steps {
    int rows, columns, row_apart;   // Of an image and a row of the result, and of two rows, in rows and columns of the source.
    int row_end, column_end;        // Behind the last ones.
    int row, column, place;         // From one to the next, if both are in the same row and the same image.
    int next_row, next_image;       // What places go further if they are not.

    DEVICE Steps(const ConvSizes& s, const Phase& phase, int down, int right) {
        const int width = (int)s.from[1], height = (int)s.from[0], to_height = max((int)s.to[0], 1), to_width = max((int)s.to[1], 1);
        row_apart = phase.h.scale;
        rows = to_height * phase.h.scale, columns = to_width * phase.w.scale;
        row_end = phase.h.from + down + rows, column_end = phase.w.from + right + columns;
        row = TILE_K / to_width % to_height * phase.h.scale, column = TILE_K % to_width * phase.w.scale;
        place = (TILE_K / to_width / to_height * height + row) * width + column;
        next_row = row_apart * width - columns, next_image = (height - rows) * width;
    }
};

// A source pixel: where it is among all images, and its row and column, which may be outside.
struct SourcePixel {
    int place, row, column;

    DEVICE void begin(const ConvSizes& s, const Phase& phase, u32 n, int down, int right) {
        const u32 line = n / max((u32)s.to[1], 1u), image = line / max((u32)s.to[0], 1u);
        row = (int)(line - image * (u32)s.to[0]) * phase.h.scale + phase.h.from + down;
        column = (int)(n - line * (u32)s.to[1]) * phase.w.scale + phase.w.from + right;
        place = ((int)image * (int)s.from[0] + row) * (int)s.from[1] + column;
    }
    DEVICE void advance(const Steps& by) {
        place += by.place, row += by.row, column += by.column;
        if (column >= by.column_end) place += by.next_row, row += by.row_apart, column -= by.columns;
        if (row >= by.row_end) place += by.next_image, row -= by.rows;
    }
};

KERNEL(conv_weight_pixels, ConvWeightPixels, p, __launch_bounds__(BLOCK_THREADS)) {
    extern __shared__ __align__(1024) unsigned char memory[];
    const ConvSizes& s = p.sizes;
    u32 rest = blockIdx.x;
    const int tile_m = rest % (u32)p.tiles_m;
    rest /= (u32)p.tiles_m;
    const int tile_n = rest % (u32)p.tiles_n;
    rest /= (u32)p.tiles_n;
    const u32 group = rest % (u32)s.groups, split = rest / (u32)s.groups;
    const Phase phase(s, 0);
    const int channels = (int)p.channels, height = (int)s.from[0], width = (int)s.from[1];
    const u32 pixels = (u32)(s.images * s.to[0] * s.to[1]), begin = split * (u32)p.depth, end = min(pixels, begin + (u32)p.depth);
    const int steps = end > begin ? (int)((end - begin + TILE_K - 1) / TILE_K) : 0;

    const int line_a = threadIdx.x / PER_A, at_a = threadIdx.x % PER_A * PIECE;
    const int line_b = threadIdx.x / PER_B, at_b = threadIdx.x % PER_B * PIECE;
    const Walk walk(tile_m * TILE_M + at_a, channels, phase.w.count);
    const int down = walk.i * phase.h.by, right = walk.j * phase.w.by;
    const bool is_tap = walk.i < phase.h.count;
    const char* x = reinterpret_cast<const char*>(p.x + group * channels + walk.channel);
    SourcePixel at[EACH_A];
    #pragma unroll
    for (int l = 0; l < EACH_A; l++) at[l].begin(s, phase, begin + line_a + l * SWEEP_A, down, right);
    const Steps by(s, phase, down, right);
    const u32 pitch = (u32)p.x_pitch * (u32)sizeof(IN);
    // The results' channel of the thread's pieces, or of the first one.
    const int channel_b = tile_n * TILE_N + (B_ALONG_K ? line_b : at_b);
    const IN* dy = p.dy + (B_ALONG_K ? (i64)(group * (int)p.dy_channels + channel_b) * p.dy_pitch
                                     : (i64)(begin + line_b) * p.dy_pitch + group * p.dy_channels + channel_b);
    // The pixel of a row's piece; in place, in its image.
    u32 pixel = begin + at_b;
    if (IN_PLACE) {
        const u32 image = pixel / (u32)p.dy_pitch;
        pixel -= image * (u32)p.dy_pitch;
        dy += (i64)image * s.groups * p.dy_channels * p.dy_pitch;
    }
    // Of what is outside nothing is read. Copies go past the cache of the multiprocessor, as those of a convolution.
    auto fetch = [&](int tile, IN* a, IN* b) {
        const u32 left = end - begin - (u32)tile * TILE_K;
        #pragma unroll
        for (int l = 0; l < EACH_A; l++) {
            const bool is_pixel = (u32)at[l].row < (u32)height && (u32)at[l].column < (u32)width;
            const bool inside = is_tap && is_pixel && (u32)(line_a + l * SWEEP_A) < left;
            copy_async<16>(a + TileA::place(line_a, at_a) + l * SWEEP_A * TileA::PITCH, x + (u32)at[l].place * pitch, inside ? 16 : 0);
            at[l].advance(by);
        }
        const IN* from = dy + (B_ALONG_K ? (i64)pixel : (i64)(tile * TILE_K) * p.dy_pitch);
        #pragma unroll
        for (int l = 0; l < EACH_B; l++) {
            // Rows of all images have zeros behind their pixels.
            const bool is_channel = channel_b + (B_ALONG_K ? l * SWEEP_B : 0) < p.dy_channels;
            const bool is_pixel = IN_PLACE ? (u32)at_b < left : B_ALONG_K || (u32)(line_b + l * SWEEP_B) < left;
            IN* to = b + TileB::place(line_b, at_b) + l * SWEEP_B * TileB::PITCH;
            copy_async<16>(to, from + (i64)(l * SWEEP_B) * p.dy_pitch, is_channel && is_pixel ? 16 : 0);
        }
        pixel += TILE_K;
        while (IN_PLACE && pixel >= (u32)p.dy_pitch) pixel -= (u32)p.dy_pitch, dy += s.groups * p.dy_channels * p.dy_pitch;
    };
    Sums sums;
    const bool sums_columns = BIAS && tile_m == 0;
    COMPUTE acc[FRAGS_M][FRAGS_N][4];
    multiply_tiles(acc, memory, steps, fetch, [&](const IN* b) {
        if (sums_columns) sums.add(b);
    });

    // A part of the weight's gradient, and of the bias's.
    const int lane = threadIdx.x & 31, from_channels = (int)s.from_channels, numbers = phase.h.count * phase.w.count * from_channels;
    const u64 part = p.first_split + split, first = (part * s.groups + group) * s.to_channels;
    #pragma unroll
    for (int i = 0; i < 2 * FRAGS_M; i++) {
        const int m = tile_m * TILE_M + first_row() + i * 8 + (lane >> 2), tap = m / channels, channel = m - tap * channels;
        if (tap >= phase.h.count * phase.w.count || channel >= from_channels) continue;
        COMPUTE* to = p.partial + first * numbers + tap * from_channels + channel;
        #pragma unroll
        for (int l = 0; l < FRAGS_N; l++) {
            const int n = tile_n * TILE_N + first_column() + column(l, (lane & 3) * 2);
            #pragma unroll
            for (int e = 0; e < 2; e++) if (n + e < s.to_channels) to[(u64)(n + e) * numbers] = acc[i / 2][l][i % 2 * 2 + e];
        }
    }
    if (!sums_columns) return;
    sums.finish(memory, [&](int column, COMPUTE sum) {
        const int n = tile_n * TILE_N + column;
        if (n < s.to_channels) p.sums[first + n] = sum;
    });
}
