// Elements of batch norm, by the statistics of their channels. Constants: those of elements.cu.

KERNEL(batch_norm, BatchNormArgs, p) {
    const IN* __restrict__ x = p.x;
    const PARAMETER *__restrict__ weight = p.weight, *__restrict__ bias = p.bias;
    const COMPUTE *__restrict__ means = p.means, *__restrict__ invs = p.invs;
    IN* __restrict__ y = p.y;
    const i64 n = p.n, channels = p.channels, inner = p.inner;
    const INDEX step = (INDEX)gridDim.x * 256 * VEC;
    for (INDEX at = ((INDEX)blockIdx.x * 256 + threadIdx.x) * VEC; at < (INDEX)n; at += step) {
        INDEX channel = channel_of(at, (INDEX)channels, (INDEX)inner);
        COMPUTE v[VEC];
        fetch(v, x + at);
        #pragma unroll
        for (int i = 0; i < VEC; i++) {
            INDEX c = INNER ? channel : channel + i;
            v[i] = (v[i] - means[c]) * (to<COMPUTE>(weight[c]) * invs[c]) + to<COMPUTE>(bias[c]);
        }
        put_all(y + at, v);
    }
}
