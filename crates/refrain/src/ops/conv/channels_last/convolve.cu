// A convolution or a transposed one of images with their channels last: A is the weight, of a row for each channel of the result, and B has
// a column for each of its pixels: the channels of the source's pixels that its taps reach. A block computes TILE_M channels of TILE_N
// pixels of PHASES phases that lie side by side, one phase after the other. Constants: those of tiles.cu, results.cu and pixels.cu; PHASES;
// MEMORY_BYTES; FEW_TAPS (whether a word has a bit for each tap of a phase); ONE_TAP (whether all numbers of a line of a tile have the
// same one).

constexpr int SWEEP = BLOCK_THREADS / (TILE_K / PIECE), EACH_A = TILE_M / SWEEP, EACH_B = TILE_N / SWEEP;
// A pixel of the result: where the first tap of the first phase is in the source, and, for each phase, a bit for each tap inside; with many
// taps, the row and column of the first one. Behind all pixels, where they are in the first channel of the result, as `place_of` reads it.
struct __align__(16) Pixel { int origin, of[2], unused; };
constexpr int OUTSIDE = -(1 << 30);
static_assert(PHASES == 1 || PHASES == 2, "what `place_of` tells");
static_assert(STAGES * STAGE_BYTES + TILE_N * (sizeof(Pixel) + sizeof(i64)) == MEMORY_BYTES, "the shared memory of the launch");
static_assert(SWEEP % TileA::ALIKE == 0 && SWEEP % TileB::ALIKE == 0 && TILE_M % SWEEP == 0 && TILE_N % SWEEP == 0, "a thread's lines");

KERNEL(conv_pixels, ConvPixels, p, __launch_bounds__(BLOCK_THREADS)) {
    extern __shared__ __align__(1024) unsigned char memory[];
    const ConvSizes& s = p.sizes;
    u32 rest = blockIdx.x;
    const int tile_m = rest % (u32)p.tiles_m;
    rest /= (u32)p.tiles_m;
    const int tile_n = rest % (u32)p.tiles_n;
    rest /= (u32)p.tiles_n;
    const u32 group = rest % (u32)s.groups, of = rest / (u32)s.groups * PHASES;
    const Phase phase(s, (int)of);
    const int channels = (int)p.channels, height = (int)s.from[0], width = (int)s.from[1];
    Taps across[PHASES];
    int all_taps = 0;
    #pragma unroll
    for (int q = 0; q < PHASES; q++) {
        across[q] = Phase(s, (int)of + q).w;
        all_taps += phase.h.count * across[q].count;
    }
    // How far a tap is from the first one.
    auto down = [&](int i) { return i * phase.h.by; };
    auto right = [&](int q, int j) { return j * across[q].by + across[q].from - phase.w.from; };
    auto is_inside = [&](int row, int column) { return (u32)row < (u32)height && (u32)column < (u32)width; };
    const u32 rows = (u32)(s.to[0] - phase.h.first + phase.h.apart - 1) / (u32)phase.h.apart;
    const u32 columns = (u32)(s.to[1] - phase.w.first + phase.w.apart - 1) / (u32)phase.w.apart;
    // Pixels that no tap reaches stay as they are.
    if (ADDS && all_taps == 0 && !p.bias) return;

    Pixel* pixels = reinterpret_cast<Pixel*>(memory + STAGES * STAGE_BYTES);
    i64* places = reinterpret_cast<i64*>(pixels + TILE_N);
    for (int i = threadIdx.x; i < TILE_N; i += BLOCK_THREADS) {
        const u32 n = (u32)tile_n * TILE_N + i, line = n / max(columns, 1u), image = line / max(rows, 1u);
        const int u = (int)(line - image * rows), v = (int)(n - line * columns);
        const bool there = image < (u32)s.images && rows > 0 && columns > 0;
        const int row = u * phase.h.scale + phase.h.from, column = v * phase.w.scale + phase.w.from;
        Pixel pixel{((int)image * height + row) * width + column, {there ? row : OUTSIDE, column}, 0};
        if (FEW_TAPS) {
            #pragma unroll
            for (int q = 0; q < 2; q++) pixel.of[q] = 0;
            #pragma unroll
            for (int q = 0; q < PHASES; q++) {
                for (int t = 0, k = 0; there && k < phase.h.count; k++) {
                    for (int l = 0; l < across[q].count; l++, t++) pixel.of[q] |= (int)is_inside(row + down(k), column + right(q, l)) << t;
                }
            }
        }
        pixels[i] = pixel;
        const i64 to_row = phase.h.first + u * phase.h.apart, to_column = phase.w.first + v * phase.w.apart;
        const i64 place = LAST ? (((i64)image * s.to[0] + to_row) * s.to[1] + to_column) * s.groups * s.to_channels + group * s.to_channels
                               : (((i64)image * s.groups + group) * s.to_channels * s.to[0] + to_row) * s.to[1] + to_column;
        places[i] = !there ? -1 : PHASES == 2 ? 2 * place + (to_column + 1 < s.to[1]) : place;
    }
    __syncthreads();

    // A thread copies one piece of some lines: of the weight's rows, and of pixels. Positions count from the source's beginning, modulo
    // 2^32 where they are outside.
    const int line = threadIdx.x / (TILE_K / PIECE), at = threadIdx.x % (TILE_K / PIECE) * PIECE;
    // Copies go past the cache of the multiprocessor: to keep them there, too, takes longer than what it finds again saves.
    const char* x = reinterpret_cast<const char*>(p.x);
    COMPUTE acc[PHASES][FRAGS_M][FRAGS_N][4];
    #pragma unroll
    for (int q = 0; q < PHASES; q++) {
        u32 origin[EACH_B], inside[EACH_B];
        #pragma unroll
        for (int l = 0; l < EACH_B; l++) {
            const Pixel pixel = pixels[line + l * SWEEP];
            origin[l] = ((u32)pixel.origin * (u32)p.pitch + group * channels + (ONE_TAP ? at : 0)) * (u32)sizeof(IN);
            inside[l] = (u32)pixel.of[q];
        }
        const int row = tile_m * TILE_M + line, rows_left = (int)s.to_channels - row;
        const IN* weights = p.weights + (group * s.to_channels + row) * p.columns + (ONE_TAP ? at : 0);
        Walk walk(ONE_TAP ? 0 : at, channels, across[q].count);
        auto fetch = [&](int, IN* a, IN* b) {
            const u32 by = ((u32)(down(walk.i) * width + right(q, walk.j)) * (u32)p.pitch + walk.channel) * (u32)sizeof(IN);
            const bool is_tap = ONE_TAP || walk.i < phase.h.count;
            const int element = (phase.h.first_tap + walk.i * phase.h.tap_apart) * (int)s.kernel[1]
                                + across[q].first_tap + walk.j * across[q].tap_apart;
            const IN* of_tap = weights + element * channels + walk.channel;
            #pragma unroll
            for (int l = 0; l < EACH_A; l++) {
                const bool there = is_tap && l * SWEEP < rows_left;
                copy_async<16>(a + TileA::place(line, at) + l * SWEEP * TileA::PITCH, of_tap + (i64)l * SWEEP * p.columns, there ? 16 : 0);
            }
            // Of what is outside nothing is read.
            #pragma unroll
            for (int l = 0; l < EACH_B; l++) {
                bool there;
                if (FEW_TAPS) {
                    there = is_tap && inside[l] >> walk.tap & 1;
                } else {
                    const Pixel& pixel = pixels[line + l * SWEEP];
                    there = is_tap && is_inside(pixel.of[0] + down(walk.i), pixel.of[1] + right(q, walk.j));
                }
                copy_async<16>(b + TileB::place(line, at) + l * SWEEP * TileB::PITCH, x + (origin[l] + by), there ? 16 : 0);
            }
            walk.advance(TILE_K, channels, across[q].count);
        };
        multiply_tiles(acc[q], memory, (phase.h.count * across[q].count * channels + TILE_K - 1) / TILE_K, fetch, [](const IN*) {});
    }

#if LAST
    write_pixels<PHASES>(p, acc, places, group, tile_m * TILE_M, memory);
#else
    write_results<PHASES>(p, acc, places, group, tile_m * TILE_M + first_row(), first_column());
#endif
}
