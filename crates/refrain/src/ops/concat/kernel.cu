// Concatenates rows of up to PARTS tensors. Their rows become columns `start` to `start + ends[PARTS - 1]` of y.
// Constants: UNIT, INDEX, PARTS.

KERNEL(concat, ConcatArgs, c) {
    UNIT* y = c.y + c.start;
    const INDEX width = (INDEX)c.ends[PARTS - 1], n = (INDEX)c.rows * width;
    const INDEX step = (INDEX)gridDim.x * blockDim.x;
    for (INDEX at = (INDEX)blockIdx.x * blockDim.x + threadIdx.x; at < n; at += step) {
        INDEX row = at / width, column = at - row * width, begin = 0, end = (INDEX)c.ends[0];
        const UNIT* x = c.x[0];
        #pragma unroll
        for (int i = 1; i < PARTS; i++) {
            if (column >= end) begin = end, end = (INDEX)c.ends[i], x = c.x[i];
        }
        y[(u64)row * c.width + column] = x[(u64)row * (end - begin) + (column - begin)];
    }
}
