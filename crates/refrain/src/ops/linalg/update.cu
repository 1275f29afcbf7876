// What solved rows take away from the others: `c = from - a b` with up to BLOCK numbers in a sum, in tiles of TILE x TILE, of which a thread
// computes 4 x 4. Constants: COMPUTE; BLOCK; TILE; LOWER, whether tiles above the diagonal are left out.

typedef COMPUTE C;

#define SIDE (TILE / 4)

KERNEL(update, UpdateArgs, p) {
    __shared__ C a[BLOCK][TILE + 1], b[BLOCK][TILE + 1];
    const i64 down = (p.rows + TILE - 1) / TILE, across = (p.columns + TILE - 1) / TILE;
    const i64 batch = blockIdx.x / (down * across), tile = blockIdx.x - batch * down * across;
    const i64 i0 = tile / across * TILE, j0 = tile % across * TILE;
    if (LOWER && j0 > i0) return;
    const int size = (int)p.size, rows = (int)min((i64)TILE, p.rows - i0), columns = (int)min((i64)TILE, p.columns - j0);
    const C* of_a = p.a + batch * p.a_batch + p.a_first + i0 * p.a_row;
    const C* of_b = p.b + batch * p.b_batch + p.b_first + j0 * p.b_column;
    // Neighbouring threads take neighbours in memory.
    const bool a_along = p.a_column == 1, b_along = p.b_row == 1;
    for (int at = threadIdx.x; at < size * rows; at += THREADS) {
        int q = a_along ? at % size : at / rows, i = a_along ? at / size : at % rows;
        a[q][i] = of_a[i * p.a_row + q * p.a_column];
    }
    for (int at = threadIdx.x; at < size * columns; at += THREADS) {
        int q = b_along ? at % size : at / columns, j = b_along ? at / size : at % columns;
        b[q][j] = of_b[q * p.b_row + j * p.b_column];
    }
    __syncthreads();
    const int i = threadIdx.x / SIDE, j = threadIdx.x % SIDE;
    C sums[4][4] = {};
    for (int q = 0; q < size; q++) {
        #pragma unroll
        for (int r = 0; r < 4; r++) {
            #pragma unroll
            for (int s = 0; s < 4; s++) sums[r][s] += a[q][i + r * SIDE] * b[q][j + s * SIDE];
        }
    }
    const i64 start = batch * p.c_batch + p.c_first + i0 * p.c_row + j0;
    #pragma unroll
    for (int r = 0; r < 4; r++) {
        #pragma unroll
        for (int s = 0; s < 4; s++) {
            const int row = i + r * SIDE, column = j + s * SIDE;
            const i64 at = start + row * p.c_row + column;
            if (row < rows && column < columns) p.c[at] = p.from[at] - sums[r][s];
        }
    }
}
