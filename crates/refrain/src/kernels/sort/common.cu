// A stable sort of 32-bit keys with the places that they came from: by eight bits at a time, lowest first. In each
// pass a block counts the digits of its keys (count), the counts of a digit are summed over the blocks (sum_up),
// and each key goes behind those of smaller digits, of earlier blocks, of earlier warps and of its warp before it
// (place).

#define DIGITS 256
#define THREADS 256
#define WARPS (THREADS / 32)
// Keys per lane; a block has THREADS * KEYS.
#define KEYS 8
// The digit of lanes without a key.
#define NONE DIGITS

// The index of the lane's key in iteration k. The keys of a warp are adjacent, in the order of iterations and lanes.
DEVICE u32 at(int k) { return (blockIdx.x * WARPS + (threadIdx.x >> 5)) * (32 * KEYS) + k * 32 + (threadIdx.x & 31); }

// The sum over the threads before this one, and over all threads.
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
