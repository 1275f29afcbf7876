// The gradients of a weight and a bias from sums whose rows have the numbers of a row of the weight as (tap, channel), and behind them that
// of the bias; the weight has them as (channel, tap). Constants: DW_TYPE, DB_TYPE.

KERNEL(conv_unfolded_weight, ConvUnfoldedWeight, p) {
    const u32 taps = (u32)p.taps, each = (u32)p.from_channels * taps;
    for (u32 i = blockIdx.x * 256 + threadIdx.x; i < (u32)p.channels * (each + 1); i += gridDim.x * 256) {
        const u32 row = i / (each + 1), at = i - row * (each + 1);
        if (at < each) {
            const u32 channel = at / taps, tap = at - channel * taps;
            const float sum = p.sums[(i64)row * p.step + (i64)tap * p.from_channels + channel];
            DW_TYPE* to = p.dw + (i64)row * each + at;
            *to = from<DW_TYPE>(p.add ? sum + ::to<float>(*to) : sum);
        } else if (p.db) {
            const float sum = p.sums[(i64)row * p.step + each];
            DB_TYPE* to = reinterpret_cast<DB_TYPE*>(p.db) + row;
            *to = from<DB_TYPE>(p.add_bias ? sum + ::to<float>(*to) : sum);
        }
    }
}
