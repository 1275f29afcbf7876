// The gradient of cross entropy: NaN in rows whose id is not one of the classes, which is reported. Constants: COMPUTE (the
// arithmetic), IN (dtype of the logits), ID (of the ids), DY (of the loss), ADD, INDEX (the type of offsets).

KERNEL(cross_entropy_backward, CrossEntropyBackwardArgs, p) {
    const i64 n = p.n, classes = p.classes;
    const double smoothing = p.smoothing;
    const INDEX step = (INDEX)gridDim.x * 256, width = (INDEX)classes;
    const COMPUTE scale = to<COMPUTE>(*p.dy) * (COMPUTE)p.share;
    const COMPUTE picked = scale * (COMPUTE)(1.0 - smoothing), level = scale * (COMPUTE)(smoothing / (double)classes);
    for (INDEX i = (INDEX)blockIdx.x * 256 + threadIdx.x; i < (INDEX)n; i += step) {
        INDEX row = i / width, column = i - row * width;
        i64 id = p.ids[row];
        COMPUTE d = exp_(to<COMPUTE>(p.x[i]) - p.largest[row]) * (scale * p.inverse[row]) - level;
        if (id == (i64)column) d -= picked;
        if (id < 0 || id >= classes) {
            if (column == 0) report(p.faults, id, classes);
            d = (COMPUTE)NAN_F;
        }
        put<ADD>(p.dx + i, d);
    }
}
