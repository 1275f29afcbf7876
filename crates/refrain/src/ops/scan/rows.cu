// Lines of neighbours. A warp takes 32 steps at a time, ITEMS times. Constants: WARPS, the warps of a chunk: 8, or 1 (then
// a line has one chunk, and a block takes 8 lines); TOTALS, whether only the total of each chunk is wanted.

#define ITEMS 8

KERNEL(scan_rows, ScanArgs, p) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const i64 item = WARPS == 1 ? (i64)blockIdx.x * WARP_COUNT + warp : (i64)blockIdx.x;
    const i64 line = item / p.chunks, chunk = item - line * p.chunks;
    const i64 base = line * p.n, start = chunk * p.length;
    const i64 limit = start + p.length < p.n ? start + p.length : p.n;
    // A warp beyond the lines has no steps.
    const i64 end = line < p.outer ? limit : start;
    const i64 first = start + (WARPS == 1 ? 0 : warp * (32 * ITEMS)) + lane;
    State s[ITEMS];
    #pragma unroll
    for (int k = 0; k < ITEMS; k++) s[k] = first + k * 32 < end ? step(p, base, first + k * 32) : nothing();
    State before = nothing();
    #pragma unroll
    for (int k = 0; k < ITEMS; k++) {
        s[k] = combine(before, scan_warp(s[k], lane));
        before = of_lane(s[k], 31);
    }
    State ahead = nothing();
#if WARPS > 1
    __shared__ State sums[WARP_COUNT];
    if (lane == 0) sums[warp] = before;
    __syncthreads();
    if (TOTALS) {
        if (threadIdx.x == 0) {
            State all = sums[0];
            for (int w = 1; w < WARP_COUNT; w++) all = combine(all, sums[w]);
            totals(p)[item] = all;
        }
        return;
    }
    if (p.chunks > 1) ahead = totals(p)[item];
    for (int w = 0; w < warp; w++) ahead = combine(ahead, sums[w]);
#endif
    #pragma unroll
    for (int k = 0; k < ITEMS; k++) {
        if (first + k * 32 < end) finish(p, base, first + k * 32, combine(ahead, s[k]));
    }
}
