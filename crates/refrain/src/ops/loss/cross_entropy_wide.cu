// Rows that are too wide for registers: a block for each.

KERNEL(cross_entropy, CrossEntropyArgs, p) {
    const i64 classes = p.classes;
    const i64 row = blockIdx.x;
    const IN* x = p.x + row * classes;
    const COMPUTE lowest = limits<COMPUTE>::lowest();
    COMPUTE shift = lowest, sum = (COMPUTE)0, distances = (COMPUTE)0;
    #pragma unroll 4
    for (i64 i = threadIdx.x; i < classes; i += 256) shift = Larger()(shift, to<COMPUTE>(x[i]));
    shift = block_reduce<256>(shift, lowest, Larger());
    #pragma unroll 4
    for (i64 i = threadIdx.x; i < classes; i += 256) {
        COMPUTE v = to<COMPUTE>(x[i]);
        sum += exp_(v - shift);
        distances += shift - v;
    }
    sum = block_sum<256>(sum);
    COMPUTE log = log_(sum);
    distances = block_sum<256>(distances);
    if (threadIdx.x == 0) {
        p.largest[row] = shift;
        p.inverse[row] = (COMPUTE)1 / sum;
        p.partial[row] = loss_of(x, p.ids[row], classes, shift, log, distances, p.smoothing, p.faults);
    }
}
