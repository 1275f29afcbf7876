// The gradient of the weight of a convolution of groups of few channels: a block sums TAPS_H x TAPS taps of one pair of channels over
// a part of the strips of all images, and that of the first taps also the bias's gradient. `conv_sum_parts` adds the parts.
// Constants, beside those of window.cu: X_TYPE, DY_TYPE, TAPS_H, BIAS, ALIGNED (whether the results of a strip can be loaded at
// once).

constexpr int SUMS = TAPS_H * TAPS, SLOTS = SUMS + BIAS, WARPS = THREADS / 32;

KERNEL(weight_gradient_directly, DirectGradient, p, __launch_bounds__(THREADS)) {
    const ConvSizes& s = p.sizes;
    constexpr u32 ACROSS = (KERNEL_W + TAPS - 1) / TAPS, TILES = ACROSS * ((KERNEL_H + TAPS_H - 1) / TAPS_H);
    const u32 pairs = (u32)(s.groups * s.to_channels * s.from_channels), channels = (u32)s.from_channels;
    const u32 tile = blockIdx.x % TILES, rest = blockIdx.x / TILES, split = rest / pairs, pair = rest - split * pairs;
    const u32 out = pair / channels, c = pair - out * channels, group = out / (u32)s.to_channels;
    const int first_row = tile / ACROSS * TAPS_H, first_tap = tile % ACROSS * TAPS;
    const u32 width = (u32)s.to[1], rows = (u32)s.to[0], strips = (width + STRIP - 1) / STRIP, each = rows * strips;
    const u32 begin = split * (u32)p.depth, end = min((u32)s.images * each, begin + (u32)p.depth);
    const i64 plane = s.from[0] * s.from[1];
    COMPUTE sums[TAPS_H][TAPS], bias = 0;
    #pragma unroll
    for (int i = 0; i < SUMS; i++) sums[i / TAPS][i % TAPS] = 0;
    for (u32 at = begin + threadIdx.x; at < end; at += THREADS) {
        const u32 image = at / each, within = at - image * each, row = within / strips, first = (within - row * strips) * STRIP;
        const DY_TYPE* from_dy = p.dy + ((image * s.groups * s.to_channels + out) * rows + row) * width + first;
        COMPUTE dy[STRIP];
#if ALIGNED
        const vec<DY_TYPE, STRIP> loaded = load<STRIP>(from_dy);
        #pragma unroll
        for (int e = 0; e < STRIP; e++) dy[e] = factor(loaded.at[e]);
#else
        #pragma unroll
        for (int e = 0; e < STRIP; e++) dy[e] = first + e < width ? factor(from_dy[e]) : (COMPUTE)0;
#endif
        if (BIAS) {
            #pragma unroll
            for (int e = 0; e < STRIP; e++) bias += dy[e];
        }
        const X_TYPE* x = p.x + ((i64)(image * (u32)s.groups + group) * channels + c) * plane;
        #pragma unroll
        for (int i = 0; i < TAPS_H; i++) {
            const int from_row = row_of((int)row, first_row + i);
            if ((u32)from_row >= (u32)s.from[0]) continue;
            const Line<X_TYPE> pixels(x + from_row * s.from[1], base_of((int)first, first_tap), (int)s.from[1]);
            #pragma unroll
            for (int e = 0; e < STRIP; e++) {
                // Zero times an infinity beside the results would be NaN.
                if (!ALIGNED && first + e >= width) break;
                #pragma unroll
                for (int k = 0; k < TAPS; k++) sums[i][k] = product_plus(dy[e], pixels(e, k), sums[i][k]);
            }
        }
    }

    __shared__ COMPUTE of_warps[WARPS][SLOTS];
    #pragma unroll
    for (int i = 0; i < SLOTS; i++) {
        COMPUTE sum = i < SUMS ? sums[i / TAPS % TAPS_H][i % TAPS] : bias;
        #pragma unroll
        for (int apart = 16; apart > 0; apart /= 2) sum += __shfl_down_sync(0xffffffff, sum, apart);
        if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32][i] = sum;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < SLOTS; i += THREADS) {
        COMPUTE sum = of_warps[0][i];
        #pragma unroll
        for (int warp = 1; warp < WARPS; warp++) sum += of_warps[warp][i];
        const int row = first_row + i / TAPS, tap = first_tap + i % TAPS;
        if (i == SUMS) {
            if (tile == 0 && c == 0) p.partial[p.splits * p.weights + split * s.groups * s.to_channels + out] = sum;
        } else if (row < KERNEL_H && tap < KERNEL_W) {
            p.partial[split * p.weights + (i64)(out * (KERNEL_H * KERNEL_W) + row * KERNEL_W + tap) * channels + c] = sum;
        }
    }
}
