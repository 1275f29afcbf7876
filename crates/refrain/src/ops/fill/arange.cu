// y[i] = start + i * step, rounded after the product and after the sum. Constant: OUT.

KERNEL(arange, ArangeArgs, p) {
    for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < p.n; i += (i64)gridDim.x * blockDim.x) {
        p.y[i] = from<OUT>(__dadd_rn(p.start, __dmul_rn((double)i, p.step)));
    }
}
