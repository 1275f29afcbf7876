// Adds up the parts of a weight's and a bias's gradient. A part of the weight's has the numbers of a row as (tap, channel), the
// result as (channel, tap): a block turns some of them. Where there are many parts, SLICES threads add up some of them each. Constants:
// COMPUTE, DW_TYPE, DB_TYPE, CHANNELS, SLICES.

constexpr int MOST_TAPS = 16, THREADS = 256;

// The sum of a number of all parts, which are `step` apart.
DEVICE COMPUTE sum_of(const COMPUTE* from, i64 parts, i64 step) {
    COMPUTE sum = 0;
    #pragma unroll 8
    for (i64 i = 0; i < parts; i++) sum += from[i * step];
    return sum;
}

KERNEL(conv_sum_parts, ConvParts, p, __launch_bounds__(THREADS)) {
    __shared__ COMPUTE tile[SLICES][CHANNELS * MOST_TAPS];
    const i64 taps = p.taps;
    const u32 across = (u32)((p.channels + CHANNELS - 1) / CHANNELS), chunks = (u32)((taps + MOST_TAPS - 1) / MOST_TAPS);
    if (blockIdx.x < (u32)p.blocks) {
        const u32 rest = blockIdx.x / across, row = rest / chunks;
        const i64 first_channel = (blockIdx.x - rest * across) * CHANNELS, first_tap = (rest - row * chunks) * MOST_TAPS;
        const int channels = (int)min(p.channels - first_channel, (i64)CHANNELS), here = (int)min(taps - first_tap, (i64)MOST_TAPS);
        const COMPUTE* from = p.partial + ((u64)row * taps + first_tap) * p.channels + first_channel;
        const i64 each = (p.splits + SLICES - 1) / SLICES;
        for (int i = threadIdx.x; i < channels * here * SLICES; i += THREADS) {
            const int slice = i / (channels * here), of = i - slice * channels * here, tap = of / channels, channel = of - tap * channels;
            const i64 first = slice * each, parts = min(each, p.splits - first);
            tile[slice][channel * here + tap] = sum_of(from + tap * p.channels + channel + first * p.weights, parts, p.weights);
        }
        __syncthreads();
        for (int i = threadIdx.x; i < channels * here; i += THREADS) {
            DW_TYPE* to = p.dw + ((u64)row * p.channels + first_channel + i / here) * taps + first_tap + i % here;
            COMPUTE sum = tile[0][i];
            #pragma unroll
            for (int slice = 1; slice < SLICES; slice++) sum += tile[slice][i];
            *to = ::from<DW_TYPE>(p.add ? sum + ::to<COMPUTE>(*to) : sum);
        }
        return;
    }
    const i64 at = (i64)(blockIdx.x - p.blocks) * THREADS + threadIdx.x;
    if (at >= p.biases) return;
    const COMPUTE sum = sum_of(p.partial + p.splits * p.weights + at, p.splits, p.biases);
    DB_TYPE* to = reinterpret_cast<DB_TYPE*>(p.db) + at;
    *to = ::from<DB_TYPE>(p.add_bias ? sum + ::to<COMPUTE>(*to) : sum);
}
