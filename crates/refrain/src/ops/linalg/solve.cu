// A block of rows of the solutions of triangular systems: `y = t^-1 b`, where `t` is a block on the diagonal of each matrix. A block of
// threads takes COLUMNS right sides. Constants: COMPUTE; BLOCK, rows of a block at most; COLUMNS; UPPER, whether `t` is an upper
// triangle; UNIT, whether its diagonal is 1, whatever is stored.

typedef COMPUTE C;

KERNEL(solve, SolveArgs, p) {
    __shared__ C t[BLOCK][BLOCK + 1], y[BLOCK][COLUMNS + 1];
    const i64 groups = (p.columns + COLUMNS - 1) / COLUMNS;
    const i64 batch = blockIdx.x / groups, first = (blockIdx.x - batch * groups) * COLUMNS;
    const int size = (int)p.size, columns = (int)min((i64)COLUMNS, p.columns - first);
    const C* matrix = p.t + batch * p.t_batch + p.t_first;
    for (int at = threadIdx.x; at < size * size; at += THREADS) {
        int i = at / size, j = at - i * size;
        t[i][j] = matrix[i * p.t_row + j * p.t_column];
    }
    const i64 start = batch * p.b_batch + p.b_first + first * p.b_column;
    // Neighbouring threads take neighbours in memory.
    const bool by_rows = p.b_column == 1;
    for (int at = threadIdx.x; at < size * columns; at += THREADS) {
        int i = by_rows ? at / columns : at % size, c = by_rows ? at % columns : at / size;
        y[i][c] = p.b[start + i * p.b_row + c * p.b_column];
    }
    __syncthreads();
    const int c = threadIdx.x % COLUMNS, group = threadIdx.x / COLUMNS;
    for (int step = 0; step < size; step++) {
        const int row = UPPER ? size - 1 - step : step;
        if (!UNIT && group == 0 && c < columns) y[row][c] /= t[row][row];
        __syncthreads();
        const int from = UPPER ? 0 : row + 1, end = UPPER ? row : size;
        if (c < columns) {
            const C v = y[row][c];
            for (int i = from + group; i < end; i += THREADS / COLUMNS) y[i][c] -= t[i][row] * v;
        }
        __syncthreads();
    }
    for (int at = threadIdx.x; at < size * columns; at += THREADS) {
        int i = by_rows ? at / columns : at % size, c = by_rows ? at % columns : at / size;
        p.y[start + i * p.b_row + c * p.b_column] = y[i][c];
    }
}
