// A stable sort of 32-bit keys with the places that they came from: by eight bits at a time, lowest first. In each
// pass a block counts the digits of its keys (count), the counts of a digit are summed over the blocks (sum_up),
// and each key goes behind those of smaller digits, of earlier blocks, of earlier warps and of its warp before it
// (place). Constant: FIRST, whether the keys are still where they came from.

#define DIGITS 256
#define THREADS 256
#define WARPS (THREADS / 32)
// Keys of a lane; a block has THREADS * KEYS.
#define KEYS 8
// A digit for lanes without a key.
#define NONE DIGITS

// The key of a lane in turn k: those of a warp lie together, in the order of turns and lanes.
DEVICE u32 at(int k) { return (blockIdx.x * WARPS + (threadIdx.x >> 5)) * (32 * KEYS) + k * 32 + (threadIdx.x & 31); }

KERNEL count(const u32* keys, u32* counts, i64 n, int shift) {
    __shared__ u32 bins[DIGITS];
    bins[threadIdx.x] = 0;
    __syncthreads();
    #pragma unroll
    for (int k = 0; k < KEYS; k++) if (at(k) < n) atomicAdd(&bins[keys[at(k)] >> shift & (DIGITS - 1)], 1u);
    __syncthreads();
    // All blocks of a digit side by side.
    counts[(u64)threadIdx.x * gridDim.x + blockIdx.x] = bins[threadIdx.x];
}

// The sum of the threads before this one, and of all.
DEVICE u32 sum_before(u32 x, u32* all) {
    __shared__ u32 sums[WARPS];
    u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5, sum = x;
    #pragma unroll
    for (int d = 1; d < 32; d *= 2) {
        u32 other = __shfl_up_sync(FULL, sum, d);
        if (lane >= d) sum += other;
    }
    __syncthreads();
    if (lane == 31) sums[warp] = sum;
    __syncthreads();
    u32 before = 0, total = 0;
    #pragma unroll
    for (int w = 0; w < WARPS; w++) {
        if (w < warp) before += sums[w];
        total += sums[w];
    }
    *all = total;
    return before + sum - x;
}

// Of each digit (a block), the counts of the blocks before.
KERNEL sum_up(u32* counts, u32* totals, i64 blocks) {
    counts += (u64)blockIdx.x * blocks;
    u32 before = 0, all;
    for (i64 start = 0; start < blocks; start += THREADS) {
        i64 i = start + threadIdx.x;
        u32 sum = sum_before(i < blocks ? counts[i] : 0, &all);
        if (i < blocks) counts[i] = before + sum;
        before += all;
    }
    if (threadIdx.x == 0) totals[blockIdx.x] = before;
}

KERNEL place(const u32* keys, const u32* entries, const u32* counts, const u32* totals, u32* to_keys, u32* to_entries,
             i64 n, int shift) {
    __shared__ u32 bins[WARPS][DIGITS + 1];
    const u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    for (u32 d = lane; d <= DIGITS; d += 32) bins[warp][d] = 0;
    __syncwarp();
    u32 key[KEYS], rank[KEYS];
    #pragma unroll
    for (int k = 0; k < KEYS; k++) key[k] = at(k) < n ? keys[at(k)] : 0;
    #pragma unroll
    for (int k = 0; k < KEYS; k++) {
        u32 digit = at(k) < n ? key[k] >> shift & (DIGITS - 1) : NONE;
        u32 same = __match_any_sync(FULL, digit);
        rank[k] = bins[warp][digit] + __popc(same & ((1u << lane) - 1));
        __syncwarp();
        if (lane == __ffs(same) - 1) bins[warp][digit] += __popc(same);
        __syncwarp();
    }
    __syncthreads();
    // Where the keys of each digit (a thread) begin, of each warp.
    u32 all, start = sum_before(totals[threadIdx.x], &all) + counts[(u64)threadIdx.x * gridDim.x + blockIdx.x];
    #pragma unroll
    for (int w = 0; w < WARPS; w++) {
        u32 count = bins[w][threadIdx.x];
        bins[w][threadIdx.x] = start;
        start += count;
    }
    __syncthreads();
    #pragma unroll
    for (int k = 0; k < KEYS; k++) {
        if (at(k) >= n) continue;
        u32 to = bins[warp][key[k] >> shift & (DIGITS - 1)] + rank[k];
        to_keys[to] = key[k];
        to_entries[to] = FIRST ? at(k) : entries[at(k)];
    }
}
