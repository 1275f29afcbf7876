// Stores the statistics of all channels.

KERNEL(batch_norm_running, RunningArgs, p) {
    i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= p.channels) return;
    Running(p.mean, p.var, i, p.eps).store(p.means, p.invs, i);
}
