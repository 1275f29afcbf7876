// One-hot vectors of class ids. An id out of range is reported and gives a vector of zeros. Constants: ID, dtype of
// the ids; OUT; INDEX; WIDE, elements that a thread writes at a time.

KERNEL(one_hot, OneHotArgs, p) {
    OUT* y = p.y;
    const INDEX n = (INDEX)p.n, classes = (INDEX)p.classes, step = ((INDEX)gridDim.x * blockDim.x) * WIDE;
    const OUT zero = from<OUT>((i64)0), one = from<OUT>((i64)1);
    for (INDEX at = ((INDEX)blockIdx.x * blockDim.x + threadIdx.x) * WIDE; at < n; at += step) {
        INDEX row = at / classes, column = at - row * classes;
        vec<OUT, WIDE> v;
        #pragma unroll
        for (int i = 0; i < WIDE; i++) {
            const i64 id = at + i < n ? p.ids[row] : -1;
            v.at[i] = id == (i64)column ? one : zero;
            if (column == 0 && at + i < n && (u64)id >= (u64)classes) report(p.faults, id, p.classes);
            if (++column == classes) column = 0, row++;
        }
        if (at + WIDE <= n) {
            store<WIDE>(y + at, v);
        } else {
            #pragma unroll
            for (int i = 0; i < WIDE; i++) if (at + i < n) y[at + i] = v.at[i];
        }
    }
}
