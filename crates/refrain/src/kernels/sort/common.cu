// A stable sort of the keys of lines, with the places that they came from: by eight bits at a time, lowest first. The digits
// of all passes are counted at once (count, sum_up). Then, in each pass, a block takes a tile of a line, and each key goes
// behind those of smaller digits, of earlier tiles, of earlier warps and of its warp before it (place). Constants: KEY (u32
// or u64); ELEMENTS, whether keys are of the elements of a tensor; THREADS; KEYS of a thread.

#define DIGITS 256
#define WARPS (THREADS / 32)
#define TILE (THREADS * KEYS)

DEVICE u32 digit_of(KEY key, i64 pass) { return (u32)(key >> (8 * pass)) & (DIGITS - 1); }

// The key at a place of a line. NEW: before the first pass.
template <bool NEW> DEVICE KEY key_at(const SortArgs& p, i64 line, u64 start, i64 at) {
#if ELEMENTS
    if (NEW) return ordered(p.x[start + (u64)at * p.inner]);
#endif
    return p.keys[(u64)line * p.n + at];
}

DEVICE u64 first_of(const SortArgs& p, i64 line) {
#if ELEMENTS
    return start_of(line, p.n, p.inner);
#else
    return 0;
#endif
}

// The sum over the threads before this one.
DEVICE u32 sum_before(u32 x) {
    __shared__ u32 sums[WARPS];
    const u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    u32 sum = x;
    #pragma unroll
    for (int d = 1; d < 32; d *= 2) {
        const u32 other = __shfl_up_sync(FULL, sum, d);
        if (lane >= d) sum += other;
    }
    if (lane == 31) sums[warp] = sum;
    __syncthreads();
    u32 before = sum - x;
    #pragma unroll
    for (int w = 0; w < WARPS; w++) if (w < warp) before += sums[w];
    return before;
}
