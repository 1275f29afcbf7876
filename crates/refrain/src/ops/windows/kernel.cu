// Windows of a series [time, channels] with any strides: y[b, c, l] = x[starts[b] + l, c]. A block copies `tile` time
// steps of some channels of a window through shared memory, so that reads and writes use whole lines. Constants:
// UNIT, UNIT_SIZE; ID, dtype of the starts; ALONG_TIME, whether time steps (and not channels) are neighbours in x.

#define THREADS 256
#define ROOM 4096
// Elements that a thread holds at a time.
#define HELD 8
#define SKEW (UNIT_SIZE < 4 ? 4 / UNIT_SIZE : 1)

KERNEL(windows, WindowsArgs, w) {
    __shared__ UNIT tile[ROOM];
    const u32 tile_l = (u32)w.tile_l, tile_c = (u32)w.tile_c, pitch = tile_l + SKEW, all = tile_l * tile_c;
    u64 rest = blockIdx.x;
    const u64 tiles_l = (w.length + tile_l - 1) / tile_l, tiles_c = (w.channels + tile_c - 1) / tile_c;
    const i64 first_l = rest % tiles_l * tile_l;
    rest /= tiles_l;
    const i64 first_c = rest % tiles_c * tile_c, b = rest / tiles_c;
    const u32 count_l = w.length - first_l < tile_l ? w.length - first_l : tile_l;
    const u32 count_c = w.channels - first_c < tile_c ? w.channels - first_c : tile_c;
    const i64 start = w.starts[b];
    const bool fits = start >= 0 && start <= w.time - w.length;
    const UNIT* x = w.x;
    if (!fits && threadIdx.x == 0) report(w.faults, start, w.time - w.length + 1);
    if (fits) x += (start + first_l) * w.step + first_c * w.side;
    UNIT* y = w.y + (b * w.channels + first_c) * w.length + first_l;

    for (u32 first = threadIdx.x; first < all; first += HELD * THREADS) {
        UNIT held[HELD];
        #pragma unroll
        for (int i = 0; i < HELD; i++) {
            u32 n = first + i * THREADS;
            u32 l = ALONG_TIME ? n % tile_l : n / tile_c, c = ALONG_TIME ? n / tile_l : n % tile_c;
            held[i] = fits && l < count_l && c < count_c ? x[l * w.step + c * w.side] : filled<UNIT>::with(w.missing);
        }
        #pragma unroll
        for (int i = 0; i < HELD; i++) {
            u32 n = first + i * THREADS;
            u32 l = ALONG_TIME ? n % tile_l : n / tile_c, c = ALONG_TIME ? n / tile_l : n % tile_c;
            if (l < count_l && c < count_c) tile[c * pitch + l] = held[i];
        }
    }
    __syncthreads();
    #pragma unroll 4
    for (u32 n = threadIdx.x; n < all; n += THREADS) {
        u32 c = n / tile_l, l = n - c * tile_l;
        if (l < count_l && c < count_c) y[c * w.length + l] = tile[c * pitch + l];
    }
}
