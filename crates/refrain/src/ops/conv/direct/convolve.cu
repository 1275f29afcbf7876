// A convolution of groups of few channels: a thread sums STRIP results of a row. Constants, beside those of window.cu: X_TYPE, W_TYPE,
// BIAS_TYPE, Y_TYPE, ADDS, ALIGNED (whether the results of a strip can be loaded and stored at once).

constexpr int UNROLLED = KERNEL_H * TAPS <= 64 ? KERNEL_H : 1;

KERNEL(convolve_directly, DirectConvolution, p, __launch_bounds__(THREADS)) {
    const ConvSizes& s = p.sizes;
    const u32 image = blockIdx.x / (u32)p.blocks, at = (blockIdx.x - image * (u32)p.blocks) * THREADS + threadIdx.x;
    const u32 width = (u32)s.to[1], rows = (u32)s.to[0], strips = (width + STRIP - 1) / STRIP;
    const u32 line = at / strips, first = (at - line * strips) * STRIP, channel = line / rows, row = line - channel * rows;
    const u32 group = channel / (u32)s.to_channels, m = channel - group * (u32)s.to_channels, channels = (u32)s.from_channels;
    if (group >= (u32)s.groups) return;
    const u32 pair = TRANSPOSED ? group * channels * (u32)s.to_channels + m : channel * channels;
    const W_TYPE* weight = p.weight + (i64)pair * (KERNEL_H * KERNEL_W);
    const u32 weight_step = (TRANSPOSED ? (u32)s.to_channels : 1) * (KERNEL_H * KERNEL_W);
    const i64 plane = s.from[0] * s.from[1];
    const X_TYPE* x = p.x + (i64)(image * (u32)s.groups + group) * channels * plane;
    COMPUTE sums[STRIP];
    #pragma unroll
    for (int e = 0; e < STRIP; e++) sums[e] = 0;
    for (u32 c = 0; c < channels; c++) {
        #pragma unroll UNROLLED
        for (int i = 0; i < KERNEL_H; i++) {
            const int from_row = row_of((int)row, i);
            if ((u32)from_row >= (u32)s.from[0]) continue;
            #pragma unroll 1
            for (int first_tap = 0; first_tap < KERNEL_W; first_tap += TAPS) {
                const Line<X_TYPE> pixels(x + from_row * s.from[1], base_of((int)first, first_tap), (int)s.from[1]);
                #pragma unroll
                for (int k = 0; k < TAPS; k++) {
                    if (KERNEL_W % TAPS && first_tap + k >= KERNEL_W) break;
                    const COMPUTE w = factor(weight[i * KERNEL_W + first_tap + k]);
                    #pragma unroll
                    for (int e = 0; e < STRIP; e++) {
                        if (reaches(e, k)) sums[e] = product_plus(pixels(e, k), w, sums[e]);
                    }
                }
            }
        }
        x += plane;
        weight += weight_step;
    }
    const COMPUTE bias = p.bias ? to<COMPUTE>(reinterpret_cast<const BIAS_TYPE*>(p.bias)[channel]) : (COMPUTE)0;
    Y_TYPE* y = p.y + ((image * s.groups * s.to_channels + channel) * rows + row) * width + first;
#if ALIGNED
    vec<Y_TYPE, STRIP> out;
    if (ADDS) out = load<STRIP>(y);
    #pragma unroll
    for (int e = 0; e < STRIP; e++) {
        const COMPUTE sum = sums[e] + bias;
        out.at[e] = from<Y_TYPE>(ADDS ? sum + to<COMPUTE>(out.at[e]) : sum);
    }
    store<STRIP>(y, out);
#else
    #pragma unroll
    for (int e = 0; e < STRIP; e++) {
        const COMPUTE sum = sums[e] + bias;
        if (first + e < width) y[e] = from<Y_TYPE>(ADDS ? sum + to<COMPUTE>(y[e]) : sum);
    }
#endif
}
