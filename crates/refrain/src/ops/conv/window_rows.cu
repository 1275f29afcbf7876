// The rows of images that windows touch, with the channels last. A block copies 32 columns of 32 channels for a row of
// windows. Constants: UNIT, an element; TURNED, whether columns are nearer to each other in memory than channels.

KERNEL(window_rows, WindowRowsArgs, p) {
    __shared__ UNIT tile[32][33];
    const int tx = threadIdx.x & 31, ty = threadIdx.x >> 5;
    const u64 depth = (u64)p.kernel * p.channels, length = p.rows * p.width * depth;
    if (blockIdx.x + 1 == gridDim.x) {
        for (u64 i = threadIdx.x; i < p.tail * depth; i += 256) p.y[length + i] = filled<UNIT>::with(0);
        return;
    }
    const u32 rest = blockIdx.x / (u32)p.tiles_c;
    const i64 c0 = (i64)(blockIdx.x - rest * (u32)p.tiles_c) * 32;
    const i64 at = rest / (u32)p.tiles_w, w0 = (i64)(rest - at * (u32)p.tiles_w) * 32;
    const i64 image = at / p.count, row = at - image * p.count;
    const UNIT* from = p.x + image * p.strides[0];
    UNIT* to = p.y + at * p.width * depth;
    for (i64 k = 0; k < p.kernel; k++) {
        const i64 i = row * p.stride + k * p.dilation - p.above;
        const bool inside = i >= 0 && i < p.height;
        #pragma unroll
        for (int j = ty; j < 32; j += 8) {
            const i64 c = c0 + (TURNED ? j : tx), w = w0 + (TURNED ? tx : j) - p.left;
            const bool there = inside && c < p.channels && w >= 0 && w < p.columns;
            tile[j][tx] = there ? from[c * p.strides[1] + i * p.strides[2] + w * p.strides[3]] : filled<UNIT>::with(0);
        }
        __syncthreads();
        #pragma unroll
        for (int j = ty; j < 32; j += 8) {
            const i64 c = c0 + tx, w = w0 + j;
            if (c < p.channels && w < p.width) to[(w * p.kernel + k) * p.channels + c] = TURNED ? tile[tx][j] : tile[j][tx];
        }
        __syncthreads();
    }
}
