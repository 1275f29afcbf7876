// The gradient of a convolution's weight as a product on tensor cores, summed over the pixels of the result: A has a row for
// each of its channels, B a column for each number of a window. A block sums a part of the pixels; `conv_sum_parts` adds the parts
// in their order. Constants, beside those of gather.cu: DY_TYPE, BIAS (whether the sums of A's rows are the bias's gradient).

static_assert(!TRANSPOSED && !A_ALONG_K && !B_ALONG_K, "what is multiplied");
static_assert(TILE_K <= 32, "the pixels of a tile are of one warp");
constexpr int SHARES = BLOCK_THREADS / TILE_K;
constexpr int EACH_A = (TileA::PIECES + SHARES - 1) / SHARES, EACH_B = (TileB::PIECES + SHARES - 1) / SHARES;
static_assert(2 * STAGE_BYTES + TILE_N / RUN * sizeof(Step) == MEMORY_BYTES, "the shared memory of the launch");

KERNEL(conv_weight_gradient, ConvGradient, p, __launch_bounds__(BLOCK_THREADS, AT_ONCE)) {
    extern __shared__ __align__(16) unsigned char memory[];
    auto a_tile = [&](int slot) { return reinterpret_cast<IN*>(memory + slot * STAGE_BYTES); };
    auto b_tile = [&](int slot) { return reinterpret_cast<IN*>(memory + slot * STAGE_BYTES + TileA::BYTES); };
    Step* table = reinterpret_cast<Step*>(memory + 2 * STAGE_BYTES);
    const ConvSizes& s = p.sizes;
    u32 rest = blockIdx.x;
    const int tile_m = rest % (u32)p.tiles_m;
    rest /= (u32)p.tiles_m;
    const int tile_n = rest % (u32)p.tiles_n;
    rest /= (u32)p.tiles_n;
    const u32 group = rest % (u32)s.groups, split = rest / (u32)s.groups;
    const Phase phase(s, 0);
    const int columns = phase.depth(s);
    for (int i = threadIdx.x; i < TILE_N / RUN; i += BLOCK_THREADS) table[i] = step_to(s, phase, tile_n * TILE_N + i * RUN);
    __syncthreads();

    // A thread gathers pieces of one pixel.
    const int pixel = threadIdx.x % TILE_K, part = threadIdx.x / TILE_K;
    const u32 plane = (u32)(s.to[0] * s.to[1]), pixels = (u32)s.images * plane;
    const u32 begin = split * (u32)p.depth, end = min(pixels, begin + (u32)p.depth);
    const int steps = (int)((end - begin + TILE_K - 1) / TILE_K), rows_left = (int)s.to_channels - tile_m * TILE_M;
    COMPUTE a_fetched[EACH_A * PIECE], b_fetched[EACH_B * PIECE], sums[EACH_A * PIECE];
    #pragma unroll
    for (int i = 0; i < EACH_A * PIECE; i++) sums[i] = 0;
    const bool sums_rows = BIAS && tile_n == 0;
    auto fetch = [&](int tile) {
        const u32 n = begin + (u32)tile * TILE_K + pixel, image = n / plane, within = n - image * plane;
        const u32 row = within / (u32)s.to[1], column = within - row * (u32)s.to[1];
        const bool there = n < end;
        const u32 of_group = image * (u32)s.groups + group;
        Origin origin;
        if (there) origin = Origin(s, phase, p.x, of_group, (int)row, (int)column);
        const DY_TYPE* dy = p.dy + ((u64)of_group * s.to_channels + tile_m * TILE_M) * plane + within;
        #pragma unroll
        for (int i = 0; i < EACH_A * PIECE; i++) {
            const int m = (part + i / PIECE * SHARES) * PIECE + i % PIECE;
            const bool is = there && m < TILE_M && m < rows_left;
            a_fetched[i] = is ? to<COMPUTE>(dy[(u64)m * plane]) : (COMPUTE)0;
        }
        #pragma unroll
        for (int i = 0; i < EACH_B * PIECE; i += RUN) {
            const int k = (part + i / PIECE * SHARES) * PIECE + i % PIECE;
            if (k < TILE_N) origin.load(s, table[k / RUN], b_fetched + i);
        }
    };
    auto put = [&](int tile) {
        #pragma unroll
        for (int i = 0; i < EACH_A; i++) {
            const int piece = part + i * SHARES;
            if (piece < TileA::PIECES) TileA::put(a_tile(tile & 1), pixel, piece, a_fetched + i * PIECE);
        }
        #pragma unroll
        for (int i = 0; i < EACH_B; i++) {
            const int piece = part + i * SHARES;
            if (piece < TileB::PIECES) TileB::put(b_tile(tile & 1), pixel, piece, b_fetched + i * PIECE);
        }
        if (sums_rows) {
            #pragma unroll
            for (int i = 0; i < EACH_A * PIECE; i++) sums[i] += a_fetched[i];
        }
    };

    COMPUTE acc[FRAGS_M][FRAGS_N][4];
    clear(acc);
    if (steps > 0) {
        fetch(0);
        put(0);
        __syncthreads();
    }
    for (int tile = 0; tile < steps; tile++) {
        const bool more = tile + 1 < steps;
        if (more) fetch(tile + 1);
        multiply_tile(acc, nullptr, a_tile(tile & 1), b_tile(tile & 1), warp_row(), warp_col());
        if (more) put(tile + 1);
        __syncthreads();
    }

    // The parts of the weight's gradient, then those of the bias's.
    const int lane = threadIdx.x & 31;
    const u64 whole = (u64)s.groups * s.to_channels;
    COMPUTE* partial = p.partial + (split * whole + group * s.to_channels) * columns;
    #pragma unroll
    for (int i = 0; i < 2 * FRAGS_M; i++) {
        const int m = tile_m * TILE_M + warp_row() + i * 8 + (lane >> 2);
        if (m >= s.to_channels) continue;
        #pragma unroll
        for (int l = 0; l < FRAGS_N; l++) {
            #pragma unroll
            for (int e = 0; e < 2; e++) {
                const int n = tile_n * TILE_N + warp_col() + column(l, (lane & 3) * 2 + e);
                if (n < columns) partial[(u64)m * columns + n] = acc[i / 2][l][i % 2 * 2 + e];
            }
        }
    }
    if (sums_rows) {
        COMPUTE* to = p.partial + (p.splits * columns + split) * whole + group * s.to_channels;
        #pragma unroll
        for (int i = 0; i < EACH_A * PIECE; i++) {
            const int m = (part + i / PIECE * SHARES) * PIECE + i % PIECE;
            const COMPUTE sum = warp_reduce<TILE_K>(sums[i], Add());
            if (pixel == 0 && m < TILE_M && m < rows_left) to[tile_m * TILE_M + m] = sum;
        }
    }
}
