// Dropout. Element i is kept if random word i is at least the threshold. The words start at the block given by the
// generator's state and the offset. Constants: ELEMENT; MASK, whether the mask is written; ADDS, whether a residual is
// added.

typedef arithmetic<ELEMENT>::type C;

KERNEL(dropout, DropoutArgs, p) {
    const ELEMENT *x = p.x, *residual = p.residual;
    ELEMENT* y = p.y;
    unsigned char* mask = p.mask;
    const i64 n = p.n, threshold = p.threshold;
    const u64 seed = (u64)p.state[0], first = (u64)p.state[1] + p.offset;
    const C scale = (C)p.scale;
    const bool aligned = (((u64)x | (u64)y | (ADDS ? (u64)residual : 0)) % (4 * ELEMENT_SIZE) | (MASK ? (u64)mask % 4 : 0)) == 0;
    const i64 blocks = (n + 3) / 4;
    for (i64 b = (i64)blockIdx.x * blockDim.x + threadIdx.x; b < blocks; b += (i64)gridDim.x * blockDim.x) {
        const bool whole = aligned && 4 * b + 4 <= n;
        vec<ELEMENT, 4> v, r = {};
        if (whole) {
            v = load<4>(x + 4 * b);
            if (ADDS) r = load<4>(residual + 4 * b);
        } else {
            #pragma unroll
            for (int i = 0; i < 4; i++) {
                if (4 * b + i < n) {
                    v.at[i] = x[4 * b + i];
                    if (ADDS) r.at[i] = residual[4 * b + i];
                }
            }
        }
        Words w = philox(seed, first + (u64)b);
        vec<unsigned char, 4> m;
        #pragma unroll
        for (int i = 0; i < 4; i++) {
            bool kept = (i64)w.at[i] >= threshold;
            v.at[i] = from<ELEMENT>(dropped<ADDS>(kept, to<C>(v.at[i]), to<C>(r.at[i]), scale));
            m.at[i] = kept;
        }
        if (whole) {
            store<4>(y + 4 * b, v);
            if (MASK) store<4>(mask + 4 * b, m);
        } else {
            #pragma unroll
            for (int i = 0; i < 4; i++) {
                if (4 * b + i < n) {
                    y[4 * b + i] = v.at[i];
                    if (MASK) mask[4 * b + i] = m.at[i];
                }
            }
        }
    }
}
