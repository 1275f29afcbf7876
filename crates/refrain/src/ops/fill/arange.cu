// y[i] = start + i * step, rounded after each of both. Constant: OUT.

KERNEL arange(OUT* y, i64 n, double start, double step) {
    for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (i64)gridDim.x * blockDim.x) {
        y[i] = from<OUT>(__dadd_rn(start, __dmul_rn((double)i, step)));
    }
}
