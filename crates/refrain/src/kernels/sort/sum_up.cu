// For each digit (one per block): sums the counts of the blocks before.

KERNEL(sum_up, SumUpArgs, p) {
    const i64 blocks = p.blocks;
    u32* counts = p.counts + (u64)blockIdx.x * blocks;
    u32 before = 0, all;
    for (i64 start = 0; start < blocks; start += THREADS) {
        i64 i = start + threadIdx.x;
        u32 sum = sum_before(i < blocks ? counts[i] : 0, &all);
        if (i < blocks) counts[i] = before + sum;
        before += all;
    }
    if (threadIdx.x == 0) p.totals[blockIdx.x] = before;
}
