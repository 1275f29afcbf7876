// The gradient of cross entropy: NaN in rows whose id is not one of the classes, which is reported. Constants: COMPUTE (the
// arithmetic), IN (dtype of the logits), ID (of the ids), DY (of the loss), ADD, INDEX (the type of offsets), VEC (neighbours that a
// thread computes; they may belong to two rows).

KERNEL(cross_entropy_backward, CrossEntropyBackwardArgs, p) {
    const i64 n = p.n, classes = p.classes;
    const double smoothing = p.smoothing;
    const INDEX step = (INDEX)gridDim.x * 256 * VEC, width = (INDEX)classes;
    const COMPUTE scale = to<COMPUTE>(*p.dy) * (COMPUTE)p.share;
    const COMPUTE picked = scale * (COMPUTE)(1.0 - smoothing), level = scale * (COMPUTE)(smoothing / (double)classes);
    for (INDEX i = ((INDEX)blockIdx.x * 256 + threadIdx.x) * VEC; i < (INDEX)n; i += step) {
        INDEX row = i / width, column = i - row * width;
        const bool whole = i + VEC <= (INDEX)n;
        vec<IN, VEC> x;
        if (whole) {
            x = load<VEC>(p.x + i);
        } else {
            for (int e = 0; e < VEC && i + e < (INDEX)n; e++) x.at[e] = p.x[i + e];
        }
        COMPUTE largest = p.largest[row], factor = scale * p.inverse[row];
        i64 id = p.ids[row];
        COMPUTE d[VEC];
        #pragma unroll
        for (int e = 0; e < VEC; e++) {
            if (i + e >= (INDEX)n) continue;
            if (column == width) {
                row++, column = 0;
                largest = p.largest[row], factor = scale * p.inverse[row];
                id = p.ids[row];
            }
            d[e] = exp_(to<COMPUTE>(x.at[e]) - largest) * factor - level;
            if (id == (i64)column) d[e] -= picked;
            if (id < 0 || id >= classes) {
                if (column == 0) report(p.faults, id, classes);
                d[e] = (COMPUTE)NAN_F;
            }
            column++;
        }
        if (whole && !ADD) {
            store<VEC>(p.dx + i, round_all<IN, VEC>(d));
        } else {
            for (int e = 0; e < VEC && i + e < (INDEX)n; e++) put<ADD>(p.dx + i + e, d[e]);
        }
    }
}
