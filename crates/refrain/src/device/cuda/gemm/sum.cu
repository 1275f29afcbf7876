// Gathers what the splits of a product left in the working memory, always in the same order. Constants, beside those of
// common.cu:
//   SLICES   warps that share the splits of numbers of C (1 or 8)
//   EACH     neighbours of a row of C that a thread takes (4 where that many lie aligned, or 1)

KERNEL __launch_bounds__(256) gemm_sum(const __grid_constant__ Job j) {
    i64 total = j.batches * j.m * j.n, groups = total / EACH, rows = j.sums ? j.m : 0;
    int slice = SLICES > 1 ? threadIdx.x / 32 : 0, thread = SLICES > 1 ? threadIdx.x % 32 : threadIdx.x;
    i64 group = (i64)blockIdx.x * (256 / SLICES) + thread;
    bool there = group < groups + rows, sum = group >= groups;
    const COMPUTE* partial = reinterpret_cast<const COMPUTE*>(j.partial);
    COMPUTE v[1][EACH] = {};
    if (there && !sum) {
        const COMPUTE* from = partial + group * EACH;
        #pragma unroll 8
        for (int s = slice; s < (int)j.splits; s += SLICES) {
            vec<COMPUTE, EACH> x = load<EACH>(from + s * total);
            #pragma unroll
            for (int i = 0; i < EACH; i++) v[0][i] += x.at[i];
        }
    } else if (there) {
        const COMPUTE* from = partial + j.splits * total + (group - groups);
        #pragma unroll 8
        for (int s = slice; s < (int)j.splits; s += SLICES) v[0][0] += from[s * j.m];
    }
    if (SLICES > 1) {
        __shared__ COMPUTE slices[8][32][EACH];
        #pragma unroll
        for (int i = 0; i < EACH; i++) slices[slice][thread][i] = v[0][i];
        __syncthreads();
        if (slice > 0) return;
        #pragma unroll
        for (int s = 1; s < SLICES; s++) {
            #pragma unroll
            for (int i = 0; i < EACH; i++) v[0][i] += slices[s][thread][i];
        }
    }
    if (!there) return;
    if (!sum) {
        COMPUTE bias[1][EACH], added[1][EACH];
        i64 at = group * EACH;
        int col = (int)(at % j.n);
        biases<1, EACH, EACH>(j, col, bias);
        read_added<1, EACH, EACH>(j, at, col, added);
        complete<1, EACH, EACH>(j, at, col, v, bias, added);
        return;
    }
    SUMS_TYPE* to = reinterpret_cast<SUMS_TYPE*>(j.sums) + (group - groups);
    *to = from<SUMS_TYPE>(j.add_sums ? v[0][0] + ::to<COMPUTE>(*to) : v[0][0]);
}
