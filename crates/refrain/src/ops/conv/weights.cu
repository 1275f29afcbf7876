// The weight as A of the product: for each phase and group a row for each result channel, numbers in the order of the sums,
// as they are multiplied; filled with zeros to whole tiles. Constants, beside those of gather.cu: W_TYPE.

KERNEL(conv_weights, ConvWeights, p) {
    const ConvSizes& s = p.sizes;
    const u64 each = (u64)p.rows * p.columns;
    for (u64 at = (u64)blockIdx.x * blockDim.x + threadIdx.x; at < (u64)p.n; at += (u64)gridDim.x * blockDim.x) {
        const u32 matrix = (u32)(at / each);
        const u64 within = at - matrix * each;
        const u32 m = (u32)(within / (u64)p.columns), k = (u32)(within - m * (u64)p.columns);
        const u32 of = matrix / (u32)s.groups, group = matrix - of * (u32)s.groups;
        const Phase phase(s, (int)of);
        COMPUTE v = 0;
        if (m < s.to_channels && k < phase.depth(s)) {
            const u32 tap = k / (u32)s.from_channels, channel = k - tap * (u32)s.from_channels, row = tap / phase.w.count;
            const u32 i = phase.h.first_tap + row * phase.h.tap_apart;
            const u32 j = phase.w.first_tap + (tap - row * phase.w.count) * phase.w.tap_apart;
            const u64 pair = TRANSPOSED ? ((u64)group * s.from_channels + channel) * s.to_channels + m
                                        : ((u64)group * s.to_channels + m) * s.from_channels + channel;
            v = to<COMPUTE>(p.weight[(pair * s.kernel[0] + i) * s.kernel[1] + j]);
        }
        p.y[at] = factor(v);
    }
}
