// The elements on one side of a diagonal, and zeros on the other. Constants: UNIT, an element; INDEX; LOWER, whether those on and below it.

KERNEL(triangle, TriangleArgs, p) {
    const UNIT* x = p.x;
    UNIT* y = p.y;
    const INDEX columns = (INDEX)p.columns, rows = (INDEX)p.rows, step = (INDEX)gridDim.x * blockDim.x;
    for (INDEX at = (INDEX)blockIdx.x * blockDim.x + threadIdx.x; at < (INDEX)p.n; at += step) {
        const INDEX line = at / columns;
        const i64 beyond = (i64)(at - line * columns) - (i64)(line % rows) - p.diagonal;
        y[at] = (LOWER ? beyond <= 0 : beyond >= 0) ? x[at] : filled<UNIT>::with(0);
    }
}
