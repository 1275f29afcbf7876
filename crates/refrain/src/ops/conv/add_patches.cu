// Rows of a matrix added to the windows of images that they stand for: each element of the images sums its own, in the
// order of the windows. Constants: ELEMENT; INDEX; ADD.

KERNEL(add_patches, AddPatchesArgs, p) {
    typedef arithmetic<ELEMENT>::type C;
    const WindowsAt& w = p.windows;
    const INDEX height = (INDEX)w.size[0], width = (INDEX)w.size[1], channels = (INDEX)p.channels;
    const u64 size = (u64)p.channels * w.kernel[0] * w.kernel[1];
    const INDEX step = (INDEX)gridDim.x * blockDim.x;
    for (INDEX at = (INDEX)blockIdx.x * blockDim.x + threadIdx.x; at < (INDEX)p.n; at += step) {
        INDEX rest = at, q = rest / width;
        const i64 j = rest - q * width;
        rest = q, q = rest / height;
        const i64 i = rest - q * height;
        const INDEX image = q / channels, channel = q - image * channels;
        const i64 last_row = last_window(w, 0, i), last_column = last_window(w, 1, j);
        C sum = (C)0;
        for (i64 row = first_window(w, 0, i); row <= last_row; row++) {
            const i64 k_h = element_of(w, 0, row, i);
            if (k_h < 0) continue;
            for (i64 column = first_window(w, 1, j); column <= last_column; column++) {
                const i64 k_w = element_of(w, 1, column, j);
                if (k_w < 0) continue;
                const u64 patch = ((u64)image * w.count[0] + row) * w.count[1] + column;
                sum += to<C>(p.x[patch * size + ((u64)channel * w.kernel[0] + k_h) * w.kernel[1] + k_w]);
            }
        }
        put<ADD>(p.y + at, sum);
    }
}
