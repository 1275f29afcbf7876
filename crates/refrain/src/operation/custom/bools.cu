// Bytes as bools: what is not 0 becomes 1.

KERNEL(custom_bools, BoolsArgs, p) {
    const i64 step = (i64)gridDim.x * blockDim.x;
    for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < p.n; i += step) p.y[i] = p.y[i] != 0;
}
