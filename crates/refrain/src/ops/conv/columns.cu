// The numbers that the sums of result pixels run over, as a matrix in memory: a row for each number, a column for each pixel of some
// images. Rows are filled with zeros to whole pieces of 16 bytes; there may be more rows than numbers. With ONES, the first of these
// has ones. A block lays out a part of a row. Constants, beside those of gather.cu: ONES.

KERNEL(conv_columns, ConvColumns, p) {
    const ConvSizes& s = p.sizes;
    const Phase phase(s, 0);
    const u32 parts = (u32)p.parts;
    const int depth = phase.depth(s), k = (int)(blockIdx.x / parts);
    const u32 rows = (u32)s.to[0], columns = (u32)s.to[1], pixels = (u32)s.images * rows * columns;
    const u32 pieces = (u32)(p.step / PIECE);
    const i64 plane = s.from[0] * s.from[1];
    const int tap = k / (int)s.from_channels, channel = k - tap * (int)s.from_channels;
    // Where the number of the first pixel is, as far as its pixel in the result does not matter.
    const int row_from = phase.h.from + tap / phase.w.count * phase.h.by, column_from = phase.w.from + tap % phase.w.count * phase.w.by;
    const X_TYPE* x = p.x + channel * plane;
    for (u32 piece = blockIdx.x % parts * 256 + threadIdx.x; piece < pieces; piece += parts * 256) {
        const u32 first = piece * PIECE, line = first / columns;
        const bool live = k < depth && first < pixels;
        u32 image = line / rows;
        int u = (int)(line - image * rows), v = (int)(first - line * columns);
        vec<IN, PIECE> out;
        const int row = u * phase.h.scale + row_from, column = v * phase.w.scale + column_from;
        if (live && phase.w.scale == 1 && v + PIECE <= columns && column >= 0 && column + PIECE <= s.from[1]) {
            // Neighbours in the source, too, unless they are above or below it.
            if ((u32)row < (u32)s.from[0]) {
                const X_TYPE* at = x + image * s.from_channels * plane + (i64)row * s.from[1] + column;
                vec<COMPUTE, PIECE> all = to_all<COMPUTE>(load_anywhere<PIECE>(at));
                #pragma unroll
                for (int e = 0; e < PIECE; e++) out.at[e] = factor(all.at[e]);
            } else {
                #pragma unroll
                for (int e = 0; e < PIECE; e++) out.at[e] = factor((COMPUTE)0);
            }
        } else {
            #pragma unroll
            for (int e = 0; e < PIECE; e++) {
                const int r = u * phase.h.scale + row_from, c = v * phase.w.scale + column_from;
                const bool there = first + e < pixels;
                COMPUTE number = ONES && there && k == depth ? (COMPUTE)1 : (COMPUTE)0;
                if (live && there && (u32)r < (u32)s.from[0] && (u32)c < (u32)s.from[1]) {
                    number = to<COMPUTE>(x[image * s.from_channels * plane + (i64)r * s.from[1] + c]);
                }
                out.at[e] = factor(number);
                if (++v == (int)columns) {
                    v = 0;
                    if (++u == (int)rows) u = 0, image++;
                }
            }
        }
        store<PIECE>(p.y + (i64)k * p.step + first, out);
    }
}
