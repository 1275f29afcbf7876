// For each line and pass (a block): where the keys of each digit begin. Constant: PASSES.

KERNEL(sum_up, SortArgs, p, __launch_bounds__(THREADS)) {
    __shared__ u32 sums[THREADS / DIGITS][DIGITS];
    const u32 digit = threadIdx.x % DIGITS, group = threadIdx.x / DIGITS;
    const i64 line = blockIdx.x / PASSES, pass = blockIdx.x - line * PASSES;
    const u32* counts = p.counts + ((u64)line * p.parts * PASSES + pass) * DIGITS + digit;
    u32 sum = 0;
    #pragma unroll 8
    for (i64 part = group; part < p.parts; part += THREADS / DIGITS) sum += counts[(u64)part * (PASSES * DIGITS)];
    sums[group][digit] = sum;
    __syncthreads();
    u32 count = 0;
    if (group == 0) {
        #pragma unroll
        for (int g = 0; g < THREADS / DIGITS; g++) count += sums[g][digit];
    }
    const u32 start = sum_before(count);
    if (group == 0) p.starts[(u64)blockIdx.x * DIGITS + digit] = start;
}
