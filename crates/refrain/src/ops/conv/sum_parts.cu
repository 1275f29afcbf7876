// Adds up the parts of a weight's and a bias's gradient. A part of the weight's has the numbers of a row as (tap, channel), the
// result as (channel, tap). Constants: COMPUTE, DW_TYPE, DB_TYPE.

KERNEL(conv_sum_parts, ConvParts, p) {
    const u64 all = p.weights + p.biases, taps = p.taps;
    for (u64 at = (u64)blockIdx.x * blockDim.x + threadIdx.x; at < all; at += (u64)gridDim.x * blockDim.x) {
        const bool of_bias = at >= (u64)p.weights;
        const u64 step = of_bias ? p.biases : p.weights;
        const COMPUTE* from = p.partial + (of_bias ? p.splits * p.weights + (at - p.weights) : at);
        COMPUTE sum = 0;
        #pragma unroll 8
        for (i64 i = 0; i < p.splits; i++) sum += from[i * step];
        if (!of_bias) {
            const u64 line = at / p.channels, row = line / taps;
            DW_TYPE* to = p.dw + (row * p.channels + (at - line * p.channels)) * taps + (line - row * taps);
            *to = ::from<DW_TYPE>(p.add ? sum + ::to<COMPUTE>(*to) : sum);
        } else {
            DB_TYPE* to = reinterpret_cast<DB_TYPE*>(p.db) + (at - p.weights);
            *to = ::from<DB_TYPE>(p.add_bias ? sum + ::to<COMPUTE>(*to) : sum);
        }
    }
}
