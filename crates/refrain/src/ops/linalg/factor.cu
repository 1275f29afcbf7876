// The Cholesky factor of a block on the diagonal of each matrix: the lower triangle of `to`, and zeros above. Constants: COMPUTE; BLOCK,
// rows and columns of a block at most.

typedef COMPUTE C;

KERNEL(factor, FactorArgs, p) {
    __shared__ C m[BLOCK][BLOCK + 1];
    const i64 n = p.n, start = (i64)blockIdx.x * n * n + p.first * (n + 1);
    const int size = (int)p.size;
    for (int at = threadIdx.x; at < size * size; at += THREADS) {
        int i = at / size, j = at - i * size;
        if (j <= i) m[i][j] = p.from[start + i * n + j];
    }
    __syncthreads();
    for (int j = 0; j < size; j++) {
        const C pivot = m[j][j], root = sqrt(pivot);
        if (threadIdx.x == 0 && !(pivot > (C)0)) report(p.faults, (i64)blockIdx.x, p.first + j);
        __syncthreads();
        for (int i = j + threadIdx.x; i < size; i += THREADS) m[i][j] = i == j ? root : m[i][j] / root;
        __syncthreads();
        const int left = size - 1 - j;
        for (int at = threadIdx.x; at < left * left; at += THREADS) {
            int i = at / left, k = at - i * left;
            if (k <= i) m[j + 1 + i][j + 1 + k] -= m[j + 1 + i][j] * m[j + 1 + k][j];
        }
        __syncthreads();
    }
    for (int at = threadIdx.x; at < size * size; at += THREADS) {
        int i = at / size, j = at - i * size;
        p.to[start + i * n + j] = j <= i ? m[i][j] : (C)0;
    }
}
