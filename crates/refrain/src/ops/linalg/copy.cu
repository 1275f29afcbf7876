// Copies matrices of `columns` columns; if LOWER only their lower triangles, with zeros above. Constants: COMPUTE; THREADS; LOWER.

typedef COMPUTE C;

KERNEL(copy, CopyArgs, p) {
    const i64 all = p.count * p.rows * p.columns;
    for (i64 at = (i64)blockIdx.x * THREADS + threadIdx.x; at < all; at += (i64)gridDim.x * THREADS) {
        const i64 row = at / p.columns, column = at - row * p.columns, batch = row / p.rows, i = row - batch * p.rows;
        const C v = p.x[batch * p.x_batch + i * p.x_row + column];
        p.y[batch * p.y_batch + i * p.y_row + column] = !LOWER || column <= i ? v : (C)0;
    }
}
