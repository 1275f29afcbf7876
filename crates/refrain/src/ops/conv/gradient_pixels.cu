// The gradient of a convolution's weight from images with their channels last, summed over the pixels of the result: A has a row for each
// of its channels, B a column for each number of a window. A block sums a part of the pixels; `conv_sum_parts` adds the parts in their order.
// Constants: those of channels_last.cu; MEMORY_BYTES; BIAS (whether the sums of A's rows are the bias's gradient).

constexpr int PER_A = TILE_M / PIECE, SWEEP_A = BLOCK_THREADS / PER_A, EACH_A = TILE_K / SWEEP_A;
constexpr int PER_B = TILE_N / PIECE, SWEEP_B = BLOCK_THREADS / PER_B, EACH_B = TILE_K / SWEEP_B;
// Origins of pixels: as many tables as tiles.
constexpr int TABLES = STAGES;
static_assert(STAGES * STAGE_BYTES + TABLES * TILE_K * sizeof(int4) == MEMORY_BYTES, "the shared memory of the launch");
static_assert(SWEEP_A % TileA::ALIKE == 0 && SWEEP_B % TileB::ALIKE == 0 && BLOCK_THREADS >= TILE_K, "a thread's lines");
static_assert(SumsOfRows<TileA>::BYTES <= STAGES * STAGE_BYTES, "the block's sums find room");

KERNEL(conv_weight_pixels, ConvWeightPixels, p, __launch_bounds__(BLOCK_THREADS)) {
    extern __shared__ __align__(1024) unsigned char memory[];
    int4(*origins)[TILE_K] = reinterpret_cast<int4(*)[TILE_K]>(memory + STAGES * STAGE_BYTES);
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

    // Where pixels of the result begin in the source: a place, a row and a column.
    auto find = [&](int tile) {
        const u32 n = begin + (u32)tile * TILE_K + threadIdx.x;
        if (threadIdx.x >= TILE_K) return;
        const u32 line = n / (u32)s.to[1], image = line / (u32)s.to[0];
        const int row = (int)(line - image * (u32)s.to[0]) * phase.h.scale + phase.h.from;
        const int column = (int)(n - line * (u32)s.to[1]) * phase.w.scale + phase.w.from;
        origins[tile % TABLES][threadIdx.x] = make_int4(((int)image * height + row) * width + column, n < end ? row : OUTSIDE, column, 0);
    };
    const int line_a = threadIdx.x / PER_A, at_a = threadIdx.x % PER_A * PIECE, line_b = threadIdx.x / PER_B, at_b = threadIdx.x % PER_B * PIECE;
    const int first_channel = tile_m * TILE_M + at_a;
    const bool is_channel = first_channel < p.dy_channels;
    const IN* dy = p.dy + (i64)(begin + line_a) * p.dy_pitch + group * p.dy_channels + first_channel;
    const Walk walk(tile_n * TILE_N + at_b, channels, phase.w.count);
    const int down = walk.i * phase.h.by, right = walk.j * phase.w.by, by = down * width + right;
    const bool is_tap = walk.i < phase.h.count;
    const IN* x = p.x + group * channels + walk.channel + (i64)by * p.x_pitch;
    // Of what is outside nothing is read.
    auto fetch = [&](int tile, IN* a, IN* b) {
        const u32 left = end - begin - (u32)tile * TILE_K;
        #pragma unroll
        for (int l = 0; l < EACH_A; l++) {
            const bool there = is_channel && (u32)(line_a + l * SWEEP_A) < left;
            const IN* from = dy + (i64)(tile * TILE_K + l * SWEEP_A) * p.dy_pitch;
            copy_async<16, true>(a + TileA::place(line_a, at_a) + l * SWEEP_A * TileA::PITCH, from, there ? 16 : 0);
        }
        #pragma unroll
        for (int l = 0; l < EACH_B; l++) {
            const int4 origin = origins[tile % TABLES][line_b + l * SWEEP_B];
            const bool inside = is_tap && (u32)(origin.y + down) < (u32)height && (u32)(origin.z + right) < (u32)width;
            copy_async<16, true>(b + TileB::place(line_b, at_b) + l * SWEEP_B * TileB::PITCH, x + (i64)origin.x * p.x_pitch, inside ? 16 : 0);
        }
        // The first tables are there. A barrier comes before the fetch that reads this one.
        if (tile + 1 >= STAGES) find(tile + 1);
    };
    SumsOfRows<TileA> sums;
    const bool sums_rows = BIAS && tile_n == 0;
    COMPUTE acc[FRAGS_M][FRAGS_N][4];
    for (int i = 0; i < STAGES; i++) find(i);
    __syncthreads();
    multiply_tiles(acc, memory, steps, fetch, [&](const IN* a) {
        if (sums_rows) sums.add(a);
    });

    // The parts of the weight's gradient, then those of the bias's.
    const int lane = threadIdx.x & 31, from_channels = (int)s.from_channels, numbers = phase.h.count * phase.w.count * from_channels;
    const u64 whole = (u64)s.groups * s.to_channels;
    COMPUTE* partial = p.partial + ((p.first_split + split) * whole + group * s.to_channels) * numbers;
    #pragma unroll
    for (int i = 0; i < 2 * FRAGS_M; i++) {
        const int m = tile_m * TILE_M + first_row() + i * 8 + (lane >> 2);
        if (m >= s.to_channels) continue;
        #pragma unroll
        for (int l = 0; l < FRAGS_N; l++) {
            const int n = tile_n * TILE_N + first_column() + column(l, (lane & 3) * 2), tap = n / channels, channel = n - tap * channels;
            if (tap >= phase.h.count * phase.w.count) continue;
            COMPUTE* to = partial + (u64)m * numbers + tap * from_channels + channel;
            #pragma unroll
            for (int e = 0; e < 2; e++) if (channel + e < from_channels) to[e] = acc[i / 2][l][i % 2 * 2 + e];
        }
    }
    if (sums_rows) {
        const COMPUTE sum = sums.whole(memory);
        const int m = tile_m * TILE_M + (int)threadIdx.x;
        if (threadIdx.x < TILE_M && m < s.to_channels) p.partial[(p.splits * numbers + p.first_split + split) * whole + group * s.to_channels + m] = sum;
    }
}
