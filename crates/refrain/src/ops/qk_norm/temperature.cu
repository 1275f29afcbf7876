// The gradients of the temperatures: a block sums over all tokens for its head. Constants: COMPUTE, ADD.

KERNEL qk_norm_temperature(const COMPUTE* along, COMPUTE* dt, i64 tokens, int heads) {
    COMPUTE sum = (COMPUTE)0;
    for (i64 token = threadIdx.x; token < tokens; token += 256) sum += along[token * heads + blockIdx.x];
    sum = block_sum<256>(sum);
    if (threadIdx.x == 0) put<ADD>(dt + blockIdx.x, sum);
}
