// A block sorts a tile of a line in shared memory (Batcher, "Sorting networks and their applications", 1968). Constants:
// SIZE, elements of a tile, a power of two and twice the threads; FIRST, whether this is the first round; LAST.

// The position of a place without an element. It comes last.
#define NOBODY 0xffffffffu

KERNEL(sort_tile, SortArgs, p, __launch_bounds__(SIZE / 2)) {
    __shared__ KEY keys[SIZE];
    __shared__ u32 positions[SIZE];
    const i64 line = blockIdx.x / p.tiles, tile = blockIdx.x - line * p.tiles;
    const u64 start = start_of(p, line, p.n);
    for (u32 i = threadIdx.x; i < SIZE; i += SIZE / 2) {
        const i64 at = tile * SIZE + i;
        u32 position = NOBODY;
        if (at < p.count) position = FIRST ? (u32)at : p.from[line * p.count + at];
        positions[i] = position;
        keys[i] = position == NOBODY ? (KEY)~(KEY)0 : ordered(p.x[start + (u64)position * p.inner]);
    }
    for (u32 size = 2; size <= SIZE; size *= 2) {
        for (u32 distance = size / 2; distance > 0; distance /= 2) {
            __syncthreads();
            const u32 i = 2 * threadIdx.x - (threadIdx.x & (distance - 1)), j = i + distance;
            const KEY a = keys[i], b = keys[j];
            const u32 from_a = positions[i], from_b = positions[j];
            const bool swapped = b < a || (b == a && from_b < from_a), up = (i & size) == 0;
            if (swapped == up) {
                keys[i] = b;
                keys[j] = a;
                positions[i] = from_b;
                positions[j] = from_a;
            }
        }
    }
    __syncthreads();
    for (u32 i = threadIdx.x; i < SIZE && i < p.keep; i += SIZE / 2) {
        if (LAST) take(p, line, i, positions[i]);
        else p.to[(u64)blockIdx.x * p.keep + i] = positions[i];
    }
}
