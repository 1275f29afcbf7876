// Copies between tensors whose elements are neighbours along different axes: along axis a in x, along axis b in
// y. A tile of both passes through shared memory, so that reads and writes take whole lines.
// Constants: ELEMENT; ADD; NARROW, whether one of the axes is shorter than a tile, which then is as long
// as there is room along the other; RANK, of all other axes.

#define SIDE 64
#define THREADS 256
// Elements that a thread holds at a time.
#define HELD 8
// Keeps the columns of a tile on different banks.
#define SKEW (ELEMENT_SIZE < 4 ? 4 / ELEMENT_SIZE : 1)
#define ROOM (SIDE * (SIDE + SKEW))

struct Transpose {
    u64 x, y;
    i64 a, b;
    i64 x_b, y_a;
    i64 tile_a, tile_b;
    i64 shape[RANK], x_strides[RANK], y_strides[RANK];
};

KERNEL transpose(const __grid_constant__ Transpose t) {
    __shared__ ELEMENT tile[ROOM];
    const u32 tile_a = NARROW ? (u32)t.tile_a : SIDE, tile_b = NARROW ? (u32)t.tile_b : SIDE;
    const u32 pitch = tile_b + SKEW, all = tile_a * tile_b;
    u64 rest = blockIdx.x;
    const u64 tiles_b = (t.b + tile_b - 1) / tile_b, tiles_a = (t.a + tile_a - 1) / tile_a;
    const i64 first_b = rest % tiles_b * tile_b;
    rest /= tiles_b;
    const i64 first_a = rest % tiles_a * tile_a;
    rest /= tiles_a;
    i64 x_at = first_a + first_b * t.x_b, y_at = first_a * t.y_a + first_b;
    #pragma unroll
    for (int d = RANK - 1; d >= 0; d--) {
        i64 at = rest % t.shape[d];
        rest /= t.shape[d];
        x_at += at * t.x_strides[d];
        y_at += at * t.y_strides[d];
    }
    const ELEMENT* x = reinterpret_cast<const ELEMENT*>(t.x) + x_at;
    ELEMENT* y = reinterpret_cast<ELEMENT*>(t.y) + y_at;
    const u32 count_a = t.a - first_a < tile_a ? t.a - first_a : tile_a;
    const u32 count_b = t.b - first_b < tile_b ? t.b - first_b : tile_b;

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
