// What solved rows take away from the others: `c = from - a b` with up to BLOCK numbers in a sum, in tiles of TILE x TILE, of which a thread
// computes 4 x 4. Constants: COMPUTE; BLOCK; TILE; THREADS; LOWER, whether what is above the diagonal is left out.

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
    // Neighbouring threads take neighbours in memory. What is missing is 0.
    const bool a_along = p.a_column == 1, b_along = p.b_row == 1;
    #pragma unroll 4
    for (int at = threadIdx.x; at < BLOCK * TILE; at += THREADS) {
        const int q = a_along ? at % BLOCK : at / TILE, i = a_along ? at / BLOCK : at % TILE;
        a[q][i] = q < size && i < rows ? of_a[i * p.a_row + q * p.a_column] : (C)0;
    }
    #pragma unroll 4
    for (int at = threadIdx.x; at < BLOCK * TILE; at += THREADS) {
        const int q = b_along ? at % BLOCK : at / TILE, j = b_along ? at / BLOCK : at % TILE;
        b[q][j] = q < size && j < columns ? of_b[q * p.b_row + j * p.b_column] : (C)0;
    }
    __syncthreads();
    const int i = threadIdx.x / SIDE, j = threadIdx.x % SIDE;
    C sums[4][4] = {};
    #pragma unroll 8
    for (int q = 0; q < BLOCK; q++) {
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
            if (row < rows && column < columns && (!LOWER || j0 + column <= i0 + row)) p.c[at] = p.from[at] - sums[r][s];
        }
    }
}
