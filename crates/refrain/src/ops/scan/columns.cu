// Lines whose steps lie `inner` elements apart: a thread for each chunk of a line, neighbouring threads for neighbouring
// lines. Constant: TOTALS, whether only the total of each chunk is wanted.

// Steps that a thread loads at a time.
#define AHEAD 8

KERNEL(scan_columns, ScanArgs, p) {
    const i64 item = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (item >= p.outer * p.chunks * p.inner) return;
    const i64 slab = item / p.inner, column = item - slab * p.inner;
    const i64 outer = slab / p.chunks, chunk = slab - outer * p.chunks;
    const i64 base = outer * p.n * p.inner + column, start = chunk * p.length;
    const i64 end = start + p.length < p.n ? start + p.length : p.n;
    State s = !TOTALS && p.chunks > 1 ? totals(p)[item] : nothing();
    for (i64 t = start; t < end; t += AHEAD) {
        // Loaded together, because a load does not pass a store that may be to its place.
        State steps[AHEAD];
        C previous[AHEAD];
        #pragma unroll
        for (int v = 0; v < AHEAD; v++) {
            if (t + v >= end) continue;
            steps[v] = step(p, base, t + v);
            if (!TOTALS) previous[v] = before(p, base, t + v);
        }
        #pragma unroll
        for (int v = 0; v < AHEAD; v++) {
            if (t + v >= end) continue;
            s = combine(s, steps[v]);
            if (!TOTALS) finish(p, base, t + v, s, previous[v]);
        }
    }
    if (TOTALS) totals(p)[item] = s;
}
