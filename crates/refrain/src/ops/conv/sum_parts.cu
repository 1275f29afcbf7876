// Adds up the parts of a weight's and a bias's gradient. A part of the weight's has the numbers of a row as (tap, channel), the
// result as (channel, tap): a block turns some of them. Where there are many parts, SLICES threads add up some of them each. Constants:
// COMPUTE, DW_TYPE, DB_TYPE, CHANNELS, SLICES, FEW (the parts, if they are few; otherwise 0).

constexpr int MOST_TAPS = 16, THREADS = 256;

// The sum of a number of all parts, which are `step` apart.
DEVICE COMPUTE sum_of(const COMPUTE* from, u32 parts, i64 step) {
    COMPUTE sum = 0;
    #pragma unroll 8
    for (u32 i = 0; i < parts; i++) sum += from[i * step];
    return sum;
}

KERNEL(conv_sum_parts, ConvParts, p, __launch_bounds__(THREADS)) {
    __shared__ COMPUTE tile[SLICES][CHANNELS * MOST_TAPS];
    const u32 all = (u32)p.channels, taps = (u32)p.taps, splits = (u32)p.splits;
    const u32 across = (all + CHANNELS - 1) / CHANNELS, chunks = (taps + MOST_TAPS - 1) / MOST_TAPS;
    if (blockIdx.x < (u32)p.blocks) {
        const u32 rest = blockIdx.x / across, row = rest / chunks;
        const u32 first_channel = (blockIdx.x - rest * across) * CHANNELS, first_tap = (rest - row * chunks) * MOST_TAPS;
        const u32 channels = min(all - first_channel, (u32)CHANNELS), here = min(taps - first_tap, (u32)MOST_TAPS);
        const COMPUTE* from = p.partial + ((u64)row * taps + first_tap) * all + first_channel;
        const u32 each = (splits + SLICES - 1) / SLICES;
        #pragma unroll 4
        for (u32 i = threadIdx.x; i < CHANNELS * here * SLICES; i += THREADS) {
            const u32 channel = i % CHANNELS, slice = i / CHANNELS % SLICES, tap = i / CHANNELS / SLICES;
            if (channel >= channels) continue;
            const u32 first = min(slice * each, splits), parts = min(each, splits - first);
            tile[slice][channel * here + tap] = sum_of(from + (tap * all + channel) + first * p.weights, FEW ? FEW : parts, p.weights);
        }
        __syncthreads();
        DW_TYPE* to = p.dw + ((u64)row * all + first_channel) * taps + first_tap;
        for (u32 i = threadIdx.x; i < channels * here; i += THREADS) {
            COMPUTE sum = tile[0][i];
            #pragma unroll
            for (int slice = 1; slice < SLICES; slice++) sum += tile[slice][i];
            // All taps of channels follow each other.
            DW_TYPE& at = to[chunks == 1 ? i : i / here * taps + i % here];
            at = ::from<DW_TYPE>(p.add ? sum + ::to<COMPUTE>(at) : sum);
        }
        return;
    }
    const i64 at = (i64)(blockIdx.x - p.blocks) * THREADS + threadIdx.x;
    if (at >= p.biases) return;
    const COMPUTE sum = sum_of(p.partial_bias + at, (u32)p.bias_splits, p.biases);
    DB_TYPE* to = reinterpret_cast<DB_TYPE*>(p.db) + at;
    *to = ::from<DB_TYPE>(p.add_bias ? sum + ::to<COMPUTE>(*to) : sum);
}
