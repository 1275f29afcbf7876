// Images [image, channel, pixel] of a result and its matrix [channel, image and pixel], whose rows have `step` numbers. Constants: VEC
// (pixels that a thread moves; they are of one image), COMPUTE, FROM, TO (the dtypes of either side), BIAS_TYPE, IN and FORM (a number
// as it is multiplied).

// To the matrix, whose rows are filled with zeros.
KERNEL(conv_from_planes, ConvPlanes, p) {
    const u32 pieces = (u32)(p.step / VEC), pixels = (u32)(p.images * p.plane);
    for (u32 i = blockIdx.x * 256 + threadIdx.x; i < (u32)p.channels * pieces; i += gridDim.x * 256) {
        const u32 channel = i / pieces, first = (i - channel * pieces) * VEC;
        const u32 image = first / (u32)p.plane, pixel = first - image * (u32)p.plane;
        vec<IN, VEC> out;
        if (first < pixels) {
            const FROM* x = reinterpret_cast<const FROM*>(p.x) + ((i64)image * p.channels + channel) * p.plane + pixel;
            vec<COMPUTE, VEC> all = to_all<COMPUTE>(load<VEC>(x));
            #pragma unroll
            for (int e = 0; e < VEC; e++) out.at[e] = factor(all.at[e]);
        } else {
            #pragma unroll
            for (int e = 0; e < VEC; e++) out.at[e] = factor((COMPUTE)0);
        }
        store<VEC>(reinterpret_cast<IN*>(p.y) + (i64)channel * p.step + first, out);
    }
}

// To the images, with the bias.
KERNEL(conv_to_planes, ConvPlanes, p) {
    const u32 pieces = (u32)(p.images * p.plane / VEC);
    for (u32 i = blockIdx.x * 256 + threadIdx.x; i < (u32)p.channels * pieces; i += gridDim.x * 256) {
        const u32 channel = i / pieces, first = (i - channel * pieces) * VEC;
        const u32 image = first / (u32)p.plane, pixel = first - image * (u32)p.plane;
        const COMPUTE bias = p.bias ? to<COMPUTE>(reinterpret_cast<const BIAS_TYPE*>(p.bias)[channel]) : (COMPUTE)0;
        vec<COMPUTE, VEC> all = to_all<COMPUTE>(load<VEC>(reinterpret_cast<const FROM*>(p.x) + (i64)channel * p.step + first));
        TO* y = reinterpret_cast<TO*>(p.y) + ((i64)image * p.channels + channel) * p.plane + pixel;
        #pragma unroll
        for (int e = 0; e < VEC; e++) all.at[e] += bias;
        if (p.add) {
            vec<COMPUTE, VEC> before = to_all<COMPUTE>(load<VEC>(y));
            #pragma unroll
            for (int e = 0; e < VEC; e++) all.at[e] += before.at[e];
        }
        store<VEC>(y, round_all<TO, VEC>(all.at));
    }
}
