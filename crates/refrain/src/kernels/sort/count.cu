// How often each digit of each pass is there, in each part of a line. What the passes begin with is set to zero. Constant:
// PASSES.

KERNEL(count, SortArgs, p, __launch_bounds__(THREADS)) {
    __shared__ u32 bins[PASSES][DIGITS];
    u32* all = &bins[0][0];
    for (u32 i = threadIdx.x; i < PASSES * DIGITS; i += THREADS) all[i] = 0;
    const i64 words = p.lines * p.tiles * DIGITS, step = (i64)gridDim.x * THREADS;
    for (i64 i = (i64)blockIdx.x * THREADS + threadIdx.x; i < words; i += step) p.states[i] = 0;
    if (blockIdx.x == 0 && threadIdx.x < PASSES) p.tickets[threadIdx.x] = 0;
    __syncthreads();
    const i64 line = blockIdx.x / p.parts, part = blockIdx.x - line * p.parts;
    const i64 length = (p.n + p.parts - 1) / p.parts, end = min((part + 1) * length, p.n);
    const u64 start = first_of(p, line);
    for (i64 from = part * length + threadIdx.x; from < end; from += TILE) {
        KEY key[KEYS];
        #pragma unroll
        for (int k = 0; k < KEYS; k++) {
            const i64 at = from + k * THREADS;
            key[k] = at < end ? key_at<true>(p, line, start, at) : 0;
        }
        #pragma unroll
        for (int k = 0; k < KEYS; k++) {
            if (from + k * THREADS >= end) break;
            #pragma unroll
            for (int pass = 0; pass < PASSES; pass++) atomicAdd(&bins[pass][digit_of(key[k], pass)], 1u);
        }
    }
    __syncthreads();
    u32* counts = p.counts + (u64)blockIdx.x * (PASSES * DIGITS);
    for (u32 i = threadIdx.x; i < PASSES * DIGITS; i += THREADS) counts[i] = all[i];
}
