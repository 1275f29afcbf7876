// Keys for a sort by bits: 32 bits at a time of the elements' keys, then the line. Constants: WORD, 0 for the lower bits,
// 1 for the upper ones, 2 for the line; FIRST, whether the elements are still where they came from.

KERNEL(sort_keys, SortArgs, p) {
    const i64 step = (i64)gridDim.x * blockDim.x;
    for (i64 at = (i64)blockIdx.x * blockDim.x + threadIdx.x; at < p.all; at += step) {
        const i64 entry = FIRST ? at : p.entries[at], line = entry / p.n;
        if (WORD == 2) {
            p.keys[at] = (u32)line;
        } else {
            const u64 key = ordered(p.x[start_of(p, line, p.n) + (u64)(entry - line * p.n) * p.inner]);
            p.keys[at] = (u32)(key >> (32 * (WORD & 1)));
        }
    }
}
