// A convolution or a transposed one as a product on tensor cores: A is the weight, of a row for each channel, and B has a column
// for each pixel of the result, gathered from the source where it lies. A block computes TILE_M channels of TILE_N pixels.
// Constants: those of gather.cu and results.cu.

constexpr int SHARES = BLOCK_THREADS / TILE_N;
constexpr int EACH = TILE_K / SHARES;
static_assert(EACH % PIECE == 0 && TILE_K <= BLOCK_THREADS, "a thread gathers whole pieces of a pixel's numbers");
static_assert(2 * (STAGE_BYTES + TILE_K / RUN * sizeof(Step)) + TILE_N * sizeof(i64) == MEMORY_BYTES, "the shared memory of the launch");

KERNEL(convolve, Convolve, p, __launch_bounds__(BLOCK_THREADS, AT_ONCE)) {
    extern __shared__ __align__(16) unsigned char memory[];
    auto a_tile = [&](int slot) { return reinterpret_cast<IN*>(memory + slot * STAGE_BYTES); };
    auto b_tile = [&](int slot) { return reinterpret_cast<IN*>(memory + slot * STAGE_BYTES + TileA::BYTES); };
    // Two tiles' steps, and where pixels lie in the first channel of the result.
    Step(*table)[TILE_K / RUN] = reinterpret_cast<Step(*)[TILE_K / RUN]>(memory + 2 * STAGE_BYTES);
    i64* places = reinterpret_cast<i64*>(table + 2);
    const ConvSizes& s = p.sizes;
    u32 rest = blockIdx.x;
    const int tile_m = rest % (u32)p.tiles_m;
    rest /= (u32)p.tiles_m;
    const int tile_n = rest % (u32)p.tiles_n;
    rest /= (u32)p.tiles_n;
    const u32 group = rest % (u32)s.groups, of = rest / (u32)s.groups;
    const Phase phase(s, (int)of);
    const int depth = phase.depth(s), steps = (depth + TILE_K - 1) / TILE_K;

    // A thread gathers some numbers of one pixel.
    const int pixel = threadIdx.x % TILE_N, part = threadIdx.x / TILE_N;
    Origin origin;
    {
        const u32 rows = (u32)(s.to[0] - phase.h.first + phase.h.apart - 1) / (u32)phase.h.apart;
        const u32 columns = (u32)(s.to[1] - phase.w.first + phase.w.apart - 1) / (u32)phase.w.apart;
        const u32 n = (u32)tile_n * TILE_N + pixel, line = n / max(columns, 1u), image = line / max(rows, 1u);
        const int u = (int)(line - image * rows), v = (int)(n - line * columns);
        const bool there = image < (u32)s.images && rows > 0 && columns > 0;
        const u32 of_group = image * (u32)s.groups + group;
        if (there) origin = Origin(s, phase, p.x, of_group, u, v);
        if (part == 0) {
            const i64 row = phase.h.first + u * phase.h.apart, column = phase.w.first + v * phase.w.apart;
            places[pixel] = there ? ((i64)of_group * s.to_channels * s.to[0] + row) * s.to[1] + column : -1;
        }
    }
    const IN* weights = p.weights + (((u64)of * s.groups + group) * p.rows + tile_m * TILE_M) * p.columns;
    auto steps_of = [&](int tile) {
        const int run = threadIdx.x;
        if (run < TILE_K / RUN) table[tile & 1][run] = step_to(s, phase, tile * TILE_K + run * RUN);
    };
    COMPUTE fetched[EACH];
    auto fetch = [&](int tile) {
        for (int i = threadIdx.x; i < TileA::PIECES * TILE_M; i += BLOCK_THREADS) {
            const int line = i / TileA::PIECES, at = i % TileA::PIECES * PIECE;
            copy_async<16, true>(a_tile(tile & 1) + TileA::place(line, at), weights + (u64)line * p.columns + tile * TILE_K + at, 16);
        }
        commit();
        #pragma unroll
        for (int i = 0; i < EACH; i += RUN) origin.load(s, table[tile & 1][(part * EACH + i) / RUN], fetched + i);
    };
    auto put = [&](int tile) {
        #pragma unroll
        for (int i = 0; i < EACH / PIECE; i++) {
            TileB::put(b_tile(tile & 1), pixel, part * (EACH / PIECE) + i, fetched + i * PIECE);
        }
    };

    COMPUTE acc[FRAGS_M][FRAGS_N][4];
    clear(acc);
    steps_of(0);
    steps_of(1);
    __syncthreads();
    if (steps > 0) {
        fetch(0);
        put(0);
        wait_for_copies<0>();
        __syncthreads();
    }
    for (int tile = 0; tile < steps; tile++) {
        const bool more = tile + 1 < steps;
        if (more) fetch(tile + 1);
        multiply_tile(acc, nullptr, a_tile(tile & 1), b_tile(tile & 1), warp_row(), warp_col());
        // The steps of this tile were last used before all threads met.
        steps_of(tile + 2);
        if (more) put(tile + 1);
        wait_for_copies<0>();
        __syncthreads();
    }

    write_results<1>(p, &acc, places, group, tile_m * TILE_M + warp_row(), warp_col());
}
