// The numbers of matrices of n columns; if LOWER those of the lower triangles, and zeros above them. Constants: COMPUTE; LOWER.

typedef COMPUTE C;

KERNEL(copy, CopyArgs, p) {
    const i64 n = p.n, all = p.all;
    for (i64 at = (i64)blockIdx.x * THREADS + threadIdx.x; at < all; at += (i64)gridDim.x * THREADS) {
        const i64 row = at / n;
        p.y[at] = !LOWER || at - row * n <= row % n ? p.x[at] : (C)0;
    }
}
