// Sums the parts that the splits of a product wrote to the workspace, always in the same order. Constants, beside
// those of common.cu:
//   SLICES   warps that share the splits of the same numbers of C (1 or 16)
//   EACH     adjacent elements of a row of C per thread (4 if they are aligned, else 1)

constexpr int THREADS = SLICES > 1 ? SLICES * 32 : 256;
// Loads in flight before the first part is added.
constexpr int AHEAD = 8;

// Adds every SLICES-th part of W adjacent numbers; the first part is at `from`, the next ones at intervals of `step`
// numbers.
template <int W> DEVICE void add_parts(COMPUTE* sum, const COMPUTE* from, i64 step, int first, int parts) {
    for (; first < parts; first += AHEAD * SLICES) {
        vec<COMPUTE, W> x[AHEAD];
        #pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            int s = first + i * SLICES;
            if (s < parts) x[i] = load<W>(from + s * step);
        }
        #pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            if (first + i * SLICES >= parts) continue;
            #pragma unroll
            for (int e = 0; e < W; e++) sum[e] += x[i].at[e];
        }
    }
}

KERNEL_THAT_WAITS(gemm_sum, Job, j, __launch_bounds__(THREADS)) {
    i64 total = j.batches * j.m * j.n, groups = total / EACH, rows = j.sums ? j.m : 0;
    int slice = SLICES > 1 ? threadIdx.x / 32 : 0, thread = SLICES > 1 ? threadIdx.x % 32 : threadIdx.x;
    i64 group = (i64)blockIdx.x * (THREADS / SLICES) + thread;
    bool there = group < groups + rows, sum = group >= groups;
    const COMPUTE* partial = reinterpret_cast<const COMPUTE*>(j.partial);
    take_turn();
    COMPUTE v[1][EACH] = {};
    if (there && !sum) {
        add_parts<EACH>(v[0], partial + group * EACH, total, slice, (int)j.splits);
    } else if (there) {
        add_parts<1>(v[0], partial + j.splits * total + (group - groups), j.m, slice, (int)j.splits);
    }
    if (SLICES > 1) {
        __shared__ COMPUTE slices[SLICES][32][EACH];
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
        vec<BIAS_TYPE, EACH> bias[1];
        Beside<EACH> beside[1];
        i64 at = group * EACH;
        int col = total >> 32 ? (int)(at % j.n) : (int)((u32)at % (u32)j.n);
        biases<1, EACH, EACH>(j, col, bias);
        read_beside<1, EACH, EACH>(j, at, col, beside);
        Place p = {};
        p.tail = tail::begin(j);
        complete<1, EACH, EACH>(j, p, at, 0, col, v, bias, beside);
        return;
    }
    SUMS_TYPE* to = reinterpret_cast<SUMS_TYPE*>(j.sums) + (group - groups);
    *to = from<SUMS_TYPE>(j.add_sums ? v[0][0] + ::to<COMPUTE>(*to) : v[0][0]);
}
