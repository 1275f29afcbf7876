// The windows of images as rows of a matrix. Constants: UNIT, an element; INDEX.

KERNEL(patches, PatchesArgs, p) {
    const WindowsAt& w = p.windows;
    const INDEX kernel_h = (INDEX)w.kernel[0], kernel_w = (INDEX)w.kernel[1], channels = (INDEX)p.channels;
    const INDEX rows = (INDEX)w.count[0], columns = (INDEX)w.count[1];
    const INDEX step = (INDEX)gridDim.x * blockDim.x;
    for (INDEX at = (INDEX)blockIdx.x * blockDim.x + threadIdx.x; at < (INDEX)p.n; at += step) {
        INDEX rest = at, q = rest / kernel_w;
        const INDEX k_w = rest - q * kernel_w;
        rest = q, q = rest / kernel_h;
        const INDEX k_h = rest - q * kernel_h;
        rest = q, q = rest / channels;
        const INDEX channel = rest - q * channels;
        rest = q, q = rest / columns;
        const INDEX column = rest - q * columns, image = q / rows, row = q - image * rows;
        const i64 i = place_of(w, 0, row, k_h), j = place_of(w, 1, column, k_w);
        const bool inside = is_inside(w, 0, i) && is_inside(w, 1, j);
        p.y[at] = inside ? p.x[(u64)image * p.strides[0] + (u64)channel * p.strides[1] + i * p.strides[2] + j * p.strides[3]]
                         : filled<UNIT>::with(0);
    }
}
