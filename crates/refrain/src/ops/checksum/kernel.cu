// A number for the bits of each chunk of elements: the sum of what each element and its place are mixed to. One block each.
// Constants: UNIT, an element; INDEX; CHUNK; THREADS.

KERNEL(checksum, ChecksumArgs, p) {
    const UNIT* x = p.x + (i64)blockIdx.x * CHUNK;
    const int count = (int)min((i64)CHUNK, p.n - (i64)blockIdx.x * CHUNK);
    u64 sum = 0;
    for (int at = threadIdx.x; at < count; at += THREADS) {
        u64 bits = (u64)x[at] + (u64)(at + 1) * 0x9e3779b97f4a7c15ull;
        bits = (bits ^ bits >> 30) * 0xbf58476d1ce4e5b9ull;
        bits = (bits ^ bits >> 27) * 0x94d049bb133111ebull;
        sum += bits ^ bits >> 31;
    }
    sum = block_sum<THREADS>(sum);
    if (threadIdx.x == 0) p.y[blockIdx.x] = (i64)sum;
}
