// A block for each column: the totals of its chunks become what lies before each chunk.

KERNEL(scan_before, ScanArgs, p) {
    __shared__ State sums[WARP_COUNT];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const i64 outer = blockIdx.x / p.inner, column = blockIdx.x - outer * p.inner;
    State* line = totals(p) + outer * p.chunks * p.inner + column;
    State ahead = nothing();
    for (i64 start = 0; start < p.chunks; start += blockDim.x) {
        const i64 chunk = start + threadIdx.x;
        State s = scan_warp(chunk < p.chunks ? line[chunk * p.inner] : nothing(), lane);
        if (lane == 31) sums[warp] = s;
        State previous = moved_up(s, 1);
        if (lane == 0) previous = nothing();
        __syncthreads();
        State here = ahead;
        for (int w = 0; w < WARP_COUNT; w++) {
            if (w == warp && chunk < p.chunks) line[chunk * p.inner] = combine(here, previous);
            here = combine(here, sums[w]);
        }
        ahead = here;
        __syncthreads();
    }
}
