// Gathers what the splits of a product left in the working memory, always in the same order.

KERNEL __launch_bounds__(256) gemm_sum(const __grid_constant__ Job j) {
    i64 total = j.batches * j.m * j.n, rows = j.sums ? j.m : 0;
    i64 at = (i64)blockIdx.x * 256 + threadIdx.x;
    if (at >= total + rows) return;
    const COMPUTE* partial = reinterpret_cast<const COMPUTE*>(j.partial);
    bool sum = at >= total;
    i64 step = sum ? j.m : total;
    partial += sum ? j.splits * total + (at - total) : at;
    COMPUTE v = 0;
    #pragma unroll 8
    for (i64 s = 0; s < j.splits; s++) v += partial[s * step];
    if (!sum) {
        complete<1>(j, at, (int)(at % j.n), 1, &v);
        return;
    }
    IN* to = reinterpret_cast<IN*>(j.sums) + (at - total);
    *to = from<IN>(j.add_sums ? v + ::to<COMPUTE>(*to) : v);
}
