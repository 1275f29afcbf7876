// The entries of a position are adjacent, in the order of the index: the last one remains. Constant: ELEMENT.

KERNEL(set_runs, AddRunsArgs, p) {
    const i64 at = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= p.entries) return;
    const u32 key = p.keys[at];
    if (key < p.n && (at + 1 == p.entries || p.keys[at + 1] != key)) p.y[key] = p.source[p.sorted[at]];
}
