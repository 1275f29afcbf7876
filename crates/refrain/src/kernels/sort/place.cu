// Where each key goes. Constant: FIRST, whether the keys are still where they came from.

KERNEL(place, PlaceArgs, p) {
    const u32* keys = p.keys;
    const i64 n = p.n;
    const int shift = (int)p.shift;
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
    // For each digit (one per thread) and each warp: where its keys begin.
    u32 all, start = sum_before(p.totals[threadIdx.x], &all) + p.counts[(u64)threadIdx.x * gridDim.x + blockIdx.x];
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
        p.to_keys[to] = key[k];
        p.to_entries[to] = FIRST ? at(k) : p.entries[at(k)];
    }
}
