// Dropout. Element i is kept if random word skip + i is at least the threshold. The words start at the block given by the
// generator's state and the offset. Constants: ELEMENT; MASK, whether the mask is written; ADDS, whether a residual is
// added.

typedef arithmetic<ELEMENT>::type C;

KERNEL(dropout, DropoutArgs, p) {
    const ELEMENT *x = p.x, *residual = p.residual;
    ELEMENT* y = p.y;
    unsigned char* mask = p.mask;
    const i64 n = p.n, skip = p.skip;
    const Threshold threshold(p.threshold);
    const u64 seed = (u64)p.state[0], first = (u64)p.state[1] + p.offset;
    const C scale = (C)p.scale;
    const bool aligned = skip == 0 && (((u64)x | (u64)y | (ADDS ? (u64)residual : 0)) % (4 * ELEMENT_SIZE) | (MASK ? (u64)mask % 4 : 0)) == 0;
    const i64 blocks = (skip + n + 3) / 4;
    for (i64 b = (i64)blockIdx.x * blockDim.x + threadIdx.x; b < blocks; b += (i64)gridDim.x * blockDim.x) {
        // The first element of this block of words; before the start, if words are skipped.
        const i64 at = 4 * b - skip;
        const bool whole = aligned && at + 4 <= n;
        vec<ELEMENT, 4> v, r = {};
        if (whole) {
            v = load<4>(x + at);
            if (ADDS) r = load<4>(residual + at);
        } else {
            #pragma unroll
            for (int i = 0; i < 4; i++) {
                if (at + i >= 0 && at + i < n) {
                    v.at[i] = x[at + i];
                    if (ADDS) r.at[i] = residual[at + i];
                }
            }
        }
        Words w = philox(seed, first + (u64)b);
        vec<unsigned char, 4> m;
        const vec<C, 4> of_x = to_all<C>(v), of_residual = to_all<C>(r);
        C values[4];
        #pragma unroll
        for (int i = 0; i < 4; i++) {
            bool kept = threshold.keeps(w.at[i]);
            values[i] = dropped<ADDS>(kept, of_x.at[i], of_residual.at[i], scale);
            m.at[i] = kept;
        }
        v = round_all<ELEMENT, 4>(values);
        if (whole) {
            store<4>(y + at, v);
            if (MASK) store<4>(mask + at, m);
        } else {
            #pragma unroll
            for (int i = 0; i < 4; i++) {
                if (at + i >= 0 && at + i < n) {
                    y[at + i] = v.at[i];
                    if (MASK) mask[at + i] = m.at[i];
                }
            }
        }
    }
}
