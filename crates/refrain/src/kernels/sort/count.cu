// Of each block, how often each digit is there.

KERNEL(count, CountArgs, p) {
    const int shift = (int)p.shift;
    __shared__ u32 bins[DIGITS];
    bins[threadIdx.x] = 0;
    __syncthreads();
    #pragma unroll
    for (int k = 0; k < KEYS; k++) if (at(k) < p.n) atomicAdd(&bins[p.keys[at(k)] >> shift & (DIGITS - 1)], 1u);
    __syncthreads();
    // The counts of all blocks for a digit are adjacent.
    p.counts[(u64)threadIdx.x * gridDim.x + blockIdx.x] = bins[threadIdx.x];
}
