// Copies between tensors whose elements are neighbours along different axes: along axis a in x, along axis b in y. A
// tile of both passes through shared memory, so that reads and writes use whole lines. Constants: ELEMENT; ADD; SIDE,
// of a tile; VECTORS, whether both sides are moved 16 bytes at a time; NARROW, whether one of the axes is shorter
// than a tile (the tile is then as long as possible along the other axis); RANK, of all other axes.

#define THREADS 256
// In the order of blocks, this many tiles along a come before the next tiles along b. Blocks that run at the same
// time then share memory pages on both sides.
#define BAND (512 / SIDE)

struct Tile {
    const ELEMENT* x;
    ELEMENT* y;
    u32 count_a, count_b;
};

// The tile of this block.
DEVICE Tile tile_of(const TransposeArgs& t, u32 tile_a, u32 tile_b) {
    const u32 tiles_a = (u32)t.tiles_a, tiles_b = (u32)t.tiles_b;
    u32 rest = blockIdx.x / (tiles_a * tiles_b), n = blockIdx.x - rest * (tiles_a * tiles_b);
    const u32 band = n / (BAND * tiles_b);
    n -= band * (BAND * tiles_b);
    const u32 width = tiles_a - band * BAND < BAND ? tiles_a - band * BAND : BAND;
    const i64 first_a = (i64)(band * BAND + n % width) * tile_a, first_b = (i64)(n / width) * tile_b;
    i64 x_at = first_a + first_b * t.x_b, y_at = first_a * t.y_a + first_b;
    #pragma unroll
    for (int d = RANK - 1; d >= 0; d--) {
        const u32 size = (u32)t.shape[d], at = rest % size;
        rest /= size;
        x_at += at * t.x_strides[d];
        y_at += at * t.y_strides[d];
    }
    const u32 count_a = t.a - first_a < tile_a ? t.a - first_a : tile_a;
    const u32 count_b = t.b - first_b < tile_b ? t.b - first_b : tile_b;
    return {t.x + x_at, t.y + y_at, count_a, count_b};
}

#if VECTORS

// Elements of a vector, and vectors along a side.
#define WIDE (16 / ELEMENT_SIZE)
#define CHUNKS (SIDE / WIDE)
#define HELD (SIDE * CHUNKS / THREADS)
// Neighbours along a that fill a bank of shared memory. A thread gathers them at once.
#define GROUP (ELEMENT_SIZE < 4 ? 4 / ELEMENT_SIZE : 1)

// Stores in one instruction. For a vector that is assembled from elements, the compiler would emit several stores.
DEVICE void store_whole(ELEMENT* to, const vec<ELEMENT, WIDE>& v) {
    union { vec<ELEMENT, WIDE> v; u32 at[4]; } bits;
    bits.v = v;
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};"
                 :: "l"(__cvta_generic_to_global(to)), "r"(bits.at[0]), "r"(bits.at[1]), "r"(bits.at[2]), "r"(bits.at[3])
                 : "memory");
}

// These launch bounds leave registers for all loads of a thread.
KERNEL(transpose, TransposeArgs, t, __launch_bounds__(THREADS, 4)) {
    // Rows along a. Chunk c of row b is stored at c ^ (b / WIDE % 8). Eight lanes that gather neighbouring vectors
    // along b then read from different banks.
    __shared__ vec<ELEMENT, WIDE> tile[SIDE][CHUNKS];
    const Tile here = tile_of(t, SIDE, SIDE);
    vec<ELEMENT, WIDE> held[HELD];
    // Beyond an edge, load the last row and vector again, so that no load waits for a comparison. Both counts are
    // whole vectors.
    #pragma unroll
    for (int i = 0; i < HELD; i++) {
        const u32 n = threadIdx.x + i * THREADS, b = n / CHUNKS, c = n % CHUNKS;
        const u32 row = b < here.count_b ? b : here.count_b - 1;
        const u32 at = c * WIDE < here.count_a ? c * WIDE : here.count_a - WIDE;
        held[i] = load<WIDE>(here.x + row * t.x_b + at);
    }
    #pragma unroll
    for (int i = 0; i < HELD; i++) {
        const u32 n = threadIdx.x + i * THREADS, b = n / CHUNKS, c = n % CHUNKS;
        tile[b][c ^ (b / WIDE % 8)] = held[i];
    }
    __syncthreads();
    #pragma unroll
    for (int i = 0; i < HELD / GROUP; i++) {
        // Eight neighbouring lanes along b, four groups along a.
        const u32 n = threadIdx.x + i * THREADS, rest = n / 32;
        const u32 c = n % 8 + rest % (CHUNKS / 8) * 8, a = (n / 8 % 4 + rest / (CHUNKS / 8) * 4) * GROUP;
        if (a >= here.count_a || c * WIDE >= here.count_b) continue;
        vec<ELEMENT, GROUP> groups[WIDE];
        #pragma unroll
        for (int k = 0; k < WIDE; k++) groups[k] = load<GROUP>(&tile[c * WIDE + k][a / WIDE ^ (c % 8)].at[a % WIDE]);
        #pragma unroll
        for (int g = 0; g < GROUP; g++) {
            vec<ELEMENT, WIDE> v;
            #pragma unroll
            for (int k = 0; k < WIDE; k++) v.at[k] = groups[k].at[g];
            ELEMENT* to_y = here.y + (a + g) * t.y_a + c * WIDE;
#if ADD
            const vec<ELEMENT, WIDE> before = load<WIDE>(to_y);
            #pragma unroll
            for (int k = 0; k < WIDE; k++) {
                ELEMENT sum = before.at[k];
                put<true>(&sum, to<arithmetic<ELEMENT>::type>(v.at[k]));
                v.at[k] = sum;
            }
#endif
            store_whole(to_y, v);
        }
    }
}

#else

// Elements that a thread holds at a time.
#define HELD 8
// Keeps the columns of a tile on different banks.
#define SKEW (ELEMENT_SIZE < 4 ? 4 / ELEMENT_SIZE : 1)
#define ROOM (SIDE * (SIDE + SKEW))

KERNEL(transpose, TransposeArgs, t) {
    __shared__ ELEMENT tile[ROOM];
    const u32 tile_a = NARROW ? (u32)t.tile_a : SIDE, tile_b = NARROW ? (u32)t.tile_b : SIDE;
    const u32 pitch = tile_b + SKEW, all = tile_a * tile_b;
    const Tile here = tile_of(t, tile_a, tile_b);
    const ELEMENT* x = here.x;
    ELEMENT* y = here.y;
    const u32 count_a = here.count_a, count_b = here.count_b;

    for (u32 start = threadIdx.x; start < all; start += HELD * THREADS) {
        ELEMENT held[HELD];
        #pragma unroll
        for (int i = 0; i < HELD; i++) {
            u32 n = start + i * THREADS, b = n / tile_a, a = n - b * tile_a;
            if (a < count_a && b < count_b) held[i] = x[b * t.x_b + a];
        }
        #pragma unroll
        for (int i = 0; i < HELD; i++) {
            u32 n = start + i * THREADS, b = n / tile_a, a = n - b * tile_a;
            if (a < count_a && b < count_b) tile[a * pitch + b] = held[i];
        }
    }
    __syncthreads();
    #pragma unroll 4
    for (u32 n = threadIdx.x; n < all; n += THREADS) {
        u32 a = n / tile_b, b = n - a * tile_b;
        if (a >= count_a || b >= count_b) continue;
        ELEMENT* to_y = y + a * t.y_a + b;
        ELEMENT v = tile[a * pitch + b];
#if ADD
        put<true>(to_y, to<arithmetic<ELEMENT>::type>(v));
#else
        *to_y = v;
#endif
    }
}

#endif
