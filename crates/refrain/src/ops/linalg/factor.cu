// The Cholesky factor of a block on the diagonal of each matrix: the lower triangle of `to`, and zeros above. A thread has a row in its
// registers. Constants: COMPUTE; BLOCK, rows of a block at most, and threads.

typedef COMPUTE C;

KERNEL(factor, FactorArgs, p, __launch_bounds__(BLOCK)) {
    __shared__ C column[2][BLOCK];
    const i64 n = p.n;
    const int i = threadIdx.x, size = (int)p.size;
    const i64 start = (i64)blockIdx.x * n * n + p.first * (n + 1) + i * n;
    C row[BLOCK];
    // Rows behind the last one are those of the identity.
    #pragma unroll
    for (int k = 0; k < BLOCK; k++) row[k] = i >= size ? (C)(k == i) : k <= i ? p.from[start + k] : (C)0;
    #pragma unroll
    for (int j = 0; j < BLOCK; j++) {
        // What the step before read lies in the other half.
        C* const raw = column[j % 2];
        raw[i] = row[j];
        __syncthreads();
        const C pivot = raw[j], inverse = rsqrt(pivot);
        if (i == j && !(pivot > (C)0)) report(p.faults, (i64)blockIdx.x, p.first + j);
        const C l = row[j] * inverse;
        row[j] = i == j ? sqrt_(pivot) : l;
        #pragma unroll
        for (int k = j + 1; k < BLOCK; k++) row[k] -= l * (raw[k] * inverse);
    }
    if (i >= size) return;
    #pragma unroll
    for (int k = 0; k < BLOCK; k++) if (k < size) p.to[start + k] = k <= i ? row[k] : (C)0;
}
