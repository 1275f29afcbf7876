// Gathers what the splits of a product left in the working memory, always in the same order. Constants, beside those of
// common.cu: SLICES, warps that share the splits of a number of C (1 or 8).

KERNEL __launch_bounds__(256) gemm_sum(const __grid_constant__ Job j) {
    i64 total = j.batches * j.m * j.n, rows = j.sums ? j.m : 0;
    int slice = SLICES > 1 ? threadIdx.x / 32 : 0, thread = SLICES > 1 ? threadIdx.x % 32 : threadIdx.x;
    i64 at = (i64)blockIdx.x * (256 / SLICES) + thread;
    bool there = at < total + rows, sum = at >= total;
    i64 step = sum ? j.m : total;
    const COMPUTE* partial = reinterpret_cast<const COMPUTE*>(j.partial) + (sum ? j.splits * total + (at - total) : at);
    COMPUTE v = 0;
    if (there) {
        #pragma unroll 8
        for (int s = slice; s < (int)j.splits; s += SLICES) v += partial[s * step];
    }
    if (SLICES > 1) {
        __shared__ COMPUTE slices[8][32];
        slices[slice][thread] = v;
        __syncthreads();
        if (slice > 0) return;
        #pragma unroll
        for (int s = 1; s < SLICES; s++) v += slices[s][thread];
    }
    if (!there) return;
    if (!sum) {
        COMPUTE x[1][1] = {{v}}, bias[1][1];
        int col = (int)(at % j.n);
        biases<1, 1, 1>(j, col, bias);
        complete<1, 1, 1>(j, at, col, x, bias);
        return;
    }
    SUMS_TYPE* to = reinterpret_cast<SUMS_TYPE*>(j.sums) + (at - total);
    *to = from<SUMS_TYPE>(j.add_sums ? v + ::to<COMPUTE>(*to) : v);
}
