// A block of rows of the solutions of triangular systems: `y = t^-1 b`, where `t` is a block on the diagonal of each matrix. A thread has
// a right side in its registers. Constants: COMPUTE; THREADS; BLOCK, rows of a block at most; UPPER, whether `t` is an upper triangle; UNIT,
// whether its diagonal is 1, whatever is stored; MOVED, whether rows of `b` are first moved as `panel` says, in their place.

typedef COMPUTE C;

KERNEL(solve, SolveArgs, p, __launch_bounds__(THREADS)) {
    // Column by column: what a solved row takes away from the others lies together.
    __shared__ C t[BLOCK][BLOCK + 4];
    const i64 groups = (p.columns + THREADS - 1) / THREADS;
    const i64 batch = blockIdx.x / groups, c = (blockIdx.x - batch * groups) * THREADS + threadIdx.x;
    const int size = (int)p.size;
    const C* matrix = p.t + batch * p.t_batch + p.t_first;
    // Neighbouring threads take neighbours in memory. Rows behind the last one are those of the identity.
    const bool by_rows = p.t_column == 1;
    for (int at = threadIdx.x; at < BLOCK * BLOCK; at += THREADS) {
        const int i = by_rows ? at / BLOCK : at % BLOCK, j = by_rows ? at % BLOCK : at / BLOCK;
        t[j][i] = i < size && j < size ? matrix[i * p.t_row + j * p.t_column] : (C)(i == j);
    }
    __syncthreads();
    if (c >= p.columns) return;
    const i64 start = batch * p.b_batch + p.b_first + c * p.b_column;
    C x[BLOCK];
#if MOVED
    const i64 *rows = p.moves + batch * (4 * BLOCK), *from = rows + 2 * BLOCK;
    C others[BLOCK];
    #pragma unroll
    for (int i = 0; i < BLOCK; i++) {
        x[i] = i < size ? p.b[start + from[i] * p.b_row] : (C)0;
        others[i] = rows[BLOCK + i] >= 0 ? p.b[start + from[BLOCK + i] * p.b_row] : (C)0;
    }
    #pragma unroll
    for (int i = 0; i < BLOCK; i++) if (rows[BLOCK + i] >= 0) p.y[start + rows[BLOCK + i] * p.b_row] = others[i];
#else
    #pragma unroll
    for (int i = 0; i < BLOCK; i++) x[i] = i < size ? p.b[start + i * p.b_row] : (C)0;
#endif
    #pragma unroll
    for (int step = 0; step < BLOCK; step++) {
        const int i = UPPER ? BLOCK - 1 - step : step;
        if (!UNIT) x[i] /= t[i][i];
        #pragma unroll
        for (int r = UPPER ? 0 : i + 1; r < (UPPER ? i : BLOCK); r++) x[r] -= t[i][r] * x[i];
    }
    #pragma unroll
    for (int i = 0; i < BLOCK; i++) if (i < size) p.y[start + i * p.b_row] = x[i];
}
