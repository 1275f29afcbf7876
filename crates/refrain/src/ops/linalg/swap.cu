// Swaps rows as `panel` did, of other columns: row `first + i` with row `rows[first + i]`. A thread takes a column. Constants: COMPUTE.

typedef COMPUTE C;

KERNEL(swap, SwapArgs, p) {
    const i64 groups = (p.columns + THREADS - 1) / THREADS;
    const i64 batch = blockIdx.x / groups, column = (blockIdx.x - batch * groups) * THREADS + threadIdx.x;
    if (column >= p.columns) return;
    C* c = p.c + batch * p.c_batch + p.c_first + column;
    const i64* rows = p.rows + batch * p.n;
    for (i64 i = p.first; i < p.first + p.size; i++) {
        const i64 other = rows[i];
        if (other == i) continue;
        const C v = c[i * p.c_row];
        c[i * p.c_row] = c[other * p.c_row];
        c[other * p.c_row] = v;
    }
}
