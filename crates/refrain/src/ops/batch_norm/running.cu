// Statistics of batch norm in evaluation: mean and 1/std of running statistics. Constants: COMPUTE (the arithmetic),
// PARAMETER (dtype of running statistics).

KERNEL(batch_norm_running, RunningArgs, p) {
    i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= p.channels) return;
    p.means[i] = to<COMPUTE>(p.mean[i]);
    p.invs[i] = (COMPUTE)1 / sqrt_(to<COMPUTE>(p.var[i]) + (COMPUTE)p.eps);
}
