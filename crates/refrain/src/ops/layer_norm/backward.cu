// The backward pass of layer and root-mean-square norm over rows in registers. With `n = (x - mean) * inv` and
// `g = dy * weight`: `dx = inv * (g - mean(g) - n * mean(g * n))`. Constants: those of rows, IN
// (dtype of rows), PARAMETER (of the weight), ADD, SUMS (whether each block also leaves its sums for weight and bias).

KERNEL(layer_norm_backward, LayerNormBackwardArgs, p) {
    const IN *__restrict__ x = p.x, *__restrict__ dy = p.dy;
    const COMPUTE *__restrict__ inv = p.inv, *__restrict__ mean = p.mean;
    IN* __restrict__ dx = p.dx;
    const double share = p.share;
    const i64 rows = p.rows, rows_a_block = p.rows_a_block;
    const int width = (int)p.width;
    const int groups = 256 / LANES;
    const i64 start = blockIdx.x * rows_a_block;
    const i64 end = start + rows_a_block < rows ? start + rows_a_block : rows;
    i64 row = start + threadIdx.x / LANES;
    bool live = row < end;
    COMPUTE w[HELD], v[HELD], d[HELD], dw[HELD], db[HELD];
    fetch_row(v, x + row * width, width, live, (COMPUTE)0);
    fetch_row(d, dy + row * width, width, live, (COMPUTE)0);
    COMPUTE r = live ? inv[row] : (COMPUTE)0, m = CENTRED && live ? mean[row] : (COMPUTE)0;
    fetch_row(w, p.weight, width, true, (COMPUTE)0);
    #pragma unroll
    for (int i = 0; i < HELD; i++) dw[i] = db[i] = (COMPUTE)0;

    for (i64 at = start; at < end; at += groups) {
        // The next row is loaded while this one is computed.
        const i64 next = row + groups;
        const bool follows = next < end;
        COMPUTE next_v[HELD], next_d[HELD];
        fetch_row(next_v, x + next * width, width, follows, (COMPUTE)0);
        fetch_row(next_d, dy + next * width, width, follows, (COMPUTE)0);
        COMPUTE next_r = follows ? inv[next] : (COMPUTE)0, next_m = CENTRED && follows ? mean[next] : (COMPUTE)0;

        COMPUTE g[HELD], products[HELD];
        #pragma unroll
        for (int i = 0; i < HELD; i++) {
            v[i] = (v[i] - m) * r;
            g[i] = d[i] * w[i];
            products[i] = g[i] * v[i];
            if (SUMS) {
                dw[i] += d[i] * v[i];
                db[i] += d[i];
            }
        }
        COMPUTE along = (COMPUTE)share * row_sum(products);
        COMPUTE level = CENTRED ? (COMPUTE)share * row_sum(g) : (COMPUTE)0;
        #pragma unroll
        for (int i = 0; i < HELD; i++) g[i] = r * (g[i] - level - v[i] * along);
        put_row<ADD>(dx + row * width, g, width, live);

        #pragma unroll
        for (int i = 0; i < HELD; i++) {
            v[i] = next_v[i];
            d[i] = next_d[i];
        }
        r = next_r;
        m = next_m;
        row = next;
        live = follows;
    }

#if SUMS
    __shared__ State warps[8][LANES * HELD];
    #pragma unroll
    for (int i = 0; i < HELD; i++) {
        State s = {dw[i], db[i]};
        #pragma unroll
        for (int distance = 16; distance >= LANES; distance /= 2) s = merge(s, exchange(s, distance));
        if ((threadIdx.x & 31) < LANES) warps[threadIdx.x >> 5][column_of(i)] = s;
    }
    __syncthreads();
    for (int column = threadIdx.x; column < width; column += 256) {
        State s = warps[0][column];
        #pragma unroll
        for (int warp = 1; warp < 8; warp++) s = merge(s, warps[warp][column]);
        reinterpret_cast<State*>(p.partial)[blockIdx.x * (i64)width + column] = s;
    }
#endif
}
