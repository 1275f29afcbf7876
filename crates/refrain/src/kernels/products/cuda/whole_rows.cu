// Copies between matrices whose rows begin anywhere and those whose rows begin at multiples of 16 bytes. Constants: ELEMENT, INDEX (the
// type of offsets).

constexpr int PIECE = 16 / (int)sizeof(ELEMENT);

// To whole rows; what is behind the width and behind the rows becomes zero.
KERNEL(whole_rows, WholeRowsArgs, p) {
    const INDEX pieces = (INDEX)(p.whole / PIECE), n = (INDEX)p.all_rows * pieces, step = (INDEX)gridDim.x * 256;
    for (INDEX i = (INDEX)blockIdx.x * 256 + threadIdx.x; i < n; i += step) {
        const i64 row = (i64)(i / pieces), column = (i64)(i % pieces) * PIECE;
        const ELEMENT* x = p.x + row * p.step + column;
        vec<ELEMENT, PIECE> v;
        if (row < p.rows && column + PIECE <= p.width) {
            v = load_anywhere<PIECE>(x);
        } else {
            #pragma unroll
            for (int e = 0; e < PIECE; e++) v.at[e] = row < p.rows && column + e < p.width ? x[e] : from<ELEMENT>(0.0f);
        }
        store<PIECE>(p.y + row * p.whole + column, v);
    }
}

// From whole rows to rows one after the other.
KERNEL(narrow_rows, WholeRowsArgs, p) {
    const INDEX width = (INDEX)p.width, n = (INDEX)p.rows * width, step = (INDEX)gridDim.x * 256 * PIECE;
    for (INDEX i = ((INDEX)blockIdx.x * 256 + threadIdx.x) * PIECE; i < n; i += step) {
        INDEX row = i / width, column = i - row * width;
        if (column + PIECE <= width) {
            store<PIECE>(p.y + i, load_anywhere<PIECE>(p.x + (i64)row * p.whole + (i64)column));
            continue;
        }
        #pragma unroll
        for (int e = 0; e < PIECE; e++, column++) {
            if (i + e >= n) break;
            if (column == width) row++, column = 0;
            p.y[i + e] = p.x[(i64)row * p.whole + (i64)column];
        }
    }
}
