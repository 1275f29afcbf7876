// Constant: ELEMENT.

#define WARP 32
// From this many entries, a whole warp sums a position.
#define LONG 32

struct Plus { DEVICE C operator()(C a, C b) const { return plus(a, b); } };

// The thread at the first entry of a position sums it. If there are many entries, the whole warp does.
KERNEL(add_runs, AddRunsArgs, p) {
    const u32 *keys = p.keys, *sorted = p.sorted;
    const ELEMENT* source = p.source;
    ELEMENT* y = p.y;
    const i64 n = p.n, entries = p.entries;
    const i64 at = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    const u32 lane = threadIdx.x & 31;
    const u32 key = at < entries ? keys[at] : (u32)n;
    const bool head = at < entries && key < n && (at == 0 || keys[at - 1] != key);
    i64 end = at + 1;
    if (head) while (end < entries && end < at + LONG && keys[end] == key) end++;
    const bool many = head && end == at + LONG;
    if (head && !many) {
        C sum = to<C>(y[key]);
        for (i64 e = at; e < end; e++) sum = plus(sum, to<C>(source[sorted[e]]));
        y[key] = from<ELEMENT>(sum);
    }
    u32 left = __ballot_sync(FULL, many);
    while (left != 0) {
        const int leader = __ffs(left) - 1;
        left &= left - 1;
        const u32 place = __shfl_sync(FULL, key, leader);
        C sum = (C)0;
        for (i64 e = at + leader;; e += WARP) {
            bool mine = e < entries && keys[e] == place;
            if (mine) sum = plus(sum, to<C>(source[sorted[e]]));
            if (!__all_sync(FULL, mine)) break;
        }
        sum = warp_reduce<32>(sum, Plus());
        if (lane == leader) y[place] = from<ELEMENT>(plus(to<C>(y[place]), sum));
    }
}
