// A stable sort of few keys: before a key come those that are smaller, and those that are equal and of earlier entries. Each warp counts
// them for KEYS adjacent keys. Constants: THREADS; KEYS of a warp (4).

// Keys that are in shared memory at a time.
#define TILE 4096

static_assert(KEYS == 4, "the keys of a warp lie as one vector");

KERNEL(rank, RankArgs, p, __launch_bounds__(THREADS)) {
    __shared__ __align__(16) u32 tile[TILE];
    const u32 n = (u32)p.n, lane = threadIdx.x & 31, first = (blockIdx.x * (THREADS / 32) + (threadIdx.x >> 5)) * KEYS;
    u32 key[KEYS], before[KEYS];
    #pragma unroll
    for (int e = 0; e < KEYS; e++) {
        key[e] = first + e < n ? p.keys[first + e] : 0;
        before[e] = 0;
    }
    for (u32 from = 0; from < n; from += TILE) {
        __syncthreads();
        // The largest number comes before nothing.
        for (u32 i = threadIdx.x; i < TILE; i += THREADS) tile[i] = from + i < n ? p.keys[from + i] : 0xffffffffu;
        __syncthreads();
        #pragma unroll 4
        for (u32 i = lane * 4; i < TILE; i += 128) {
            const vec<u32, 4> other = load<4>(tile + i);
            const u32 at = from + i;
            #pragma unroll
            for (int e = 0; e < KEYS; e++) {
                // Of earlier entries, equal keys count as well.
                const u32 earlier = key[e] + 1;
                #pragma unroll
                for (int k = 0; k < 4; k++) before[e] += other.at[k] < (at < first || (at == first && k < e) ? earlier : key[e]);
            }
        }
    }
    #pragma unroll
    for (int e = 0; e < KEYS; e++) {
        const u32 place = warp_sum(before[e]);
        if (lane == e && first + e < n) {
            p.to_keys[place] = key[e];
            p.to_entries[place] = first + e;
        }
    }
}
