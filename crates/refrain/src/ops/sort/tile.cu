// A block sorts a tile of a line in registers (Batcher, "Sorting networks and their applications", 1968): element i is with
// thread i / ITEMS, so that most are compared within a thread or a warp. Constants: SIZE, elements of a tile, a power of two;
// ITEMS, those of a thread; FIRST, whether this is the first round; LAST.

// The position of a place without an element. It comes last.
#define NOBODY 0xffffffffu
#define THREADS (SIZE / ITEMS)

// A key, and the position that it came from.
#if IN_SIZE == 8
struct Item { u32 position, low, high; };
DEVICE Item item_of(KEY key, u32 position) { return {position, (u32)key, (u32)(key >> 32)}; }
DEVICE u32 position_of(const Item& x) { return x.position; }
DEVICE bool less(const Item& a, const Item& b) {
    const u64 x = (u64)a.high << 32 | a.low, y = (u64)b.high << 32 | b.low;
    return x < y || (x == y && a.position < b.position);
}
#else
typedef u64 Item;
DEVICE Item item_of(KEY key, u32 position) { return (u64)key << 32 | position; }
DEVICE u32 position_of(Item x) { return (u32)x; }
DEVICE bool less(Item a, Item b) { return a < b; }
#endif

KERNEL(sort_tile, TileArgs, p, __launch_bounds__(THREADS)) {
    // The elements of a thread lie apart, so that neither threads nor neighbouring elements meet in a bank.
    __shared__ Item shared[ITEMS][THREADS + 2];
    const u32 thread = threadIdx.x;
    const i64 line = blockIdx.x / p.tiles, tile = blockIdx.x - line * p.tiles;
    const u64 start = start_of(line, p.n, p.inner);
    Item own[ITEMS];
    #pragma unroll
    for (int e = 0; e < ITEMS; e++) {
        const i64 at = tile * SIZE + e * THREADS + thread;
        own[e] = item_of(~(KEY)0, NOBODY);
        if (at < p.count) {
            const u32 position = FIRST ? (u32)at : p.from[line * p.count + at];
            if (position != NOBODY) own[e] = item_of(ordered(p.x[start + (u64)position * p.inner]), position);
        }
    }
    #pragma unroll 1
    for (u32 size = 2; size <= SIZE; size *= 2) {
        const bool up = (thread * ITEMS & size) == 0;
        #pragma unroll 1
        for (u32 apart = size / (2 * ITEMS); apart > 0; apart /= 2) {
            Item other[ITEMS];
            if (apart < 32) {
                #pragma unroll
                for (int e = 0; e < ITEMS; e++) other[e] = exchange(own[e], apart);
            } else {
                __syncthreads();
                #pragma unroll
                for (int e = 0; e < ITEMS; e++) shared[e][thread] = own[e];
                __syncthreads();
                #pragma unroll
                for (int e = 0; e < ITEMS; e++) other[e] = shared[e][thread ^ apart];
            }
            const bool smaller = up == ((thread & apart) == 0);
            #pragma unroll
            for (int e = 0; e < ITEMS; e++) if (less(other[e], own[e]) == smaller) own[e] = other[e];
        }
        #pragma unroll
        for (int distance = ITEMS / 2; distance > 0; distance /= 2) {
            if (distance >= size) continue;
            #pragma unroll
            for (int e = 0; e < ITEMS; e++) {
                if (e & distance) continue;
                const bool rises = size < ITEMS ? (e & size) == 0 : up;
                const Item a = own[e], b = own[e + distance];
                if (less(b, a) == rises) {
                    own[e] = b;
                    own[e + distance] = a;
                }
            }
        }
    }
    __syncthreads();
    #pragma unroll
    for (int e = 0; e < ITEMS; e++) shared[e][thread] = own[e];
    __syncthreads();
    for (u32 i = thread; i < SIZE && i < p.keep; i += THREADS) {
        const u32 position = position_of(shared[i % ITEMS][i / ITEMS]);
        if (LAST) take(p, line, i, position);
        else p.to[(u64)blockIdx.x * p.keep + i] = position;
    }
}
