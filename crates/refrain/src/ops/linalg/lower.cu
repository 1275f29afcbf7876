// The lower triangle of each matrix, and zeros above it. Constants: COMPUTE.

typedef COMPUTE C;

KERNEL(lower, LowerArgs, p) {
    const i64 n = p.n, all = p.all;
    for (i64 at = (i64)blockIdx.x * THREADS + threadIdx.x; at < all; at += (i64)gridDim.x * THREADS) {
        const i64 row = at / n;
        p.y[at] = at - row * n <= row % n ? p.x[at] : (C)0;
    }
}
