// The gradient of pooling: each element of the images sums what its windows give it, in their order. Constants: KIND, one
// of those below; ELEMENT; INDEX; ADD; those of windows.

#define MAX 1
#define MEAN 2
#define MEAN_OF_ALL 3

KERNEL(pool_backward, PoolBackwardArgs, p) {
    typedef arithmetic<ELEMENT>::type C;
    typedef window<0> Rows;
    typedef window<1> Columns;
    const INDEX height = (INDEX)p.size[0], width = (INDEX)p.size[1], step = (INDEX)gridDim.x * blockDim.x;
    const PLACE rows = (PLACE)p.count[0], columns = (PLACE)p.count[1];
    for (INDEX at = (INDEX)blockIdx.x * blockDim.x + threadIdx.x; at < (INDEX)p.n; at += step) {
        const INDEX q = at / width, plane = q / height;
        const PLACE j = (PLACE)(at - q * width), i = (PLACE)(q - plane * height);
        const PLACE first_row = Rows::first(i), last_row = Rows::last(i, rows);
        const PLACE first_column = Columns::first(j), last_column = Columns::last(j, columns);
        C sum = (C)0;
        #pragma unroll ROUNDS(Rows::REACHING)
        for (PLACE a = 0; a < Rows::REACHING; a++) {
            const PLACE row = first_row + a;
            if (row > last_row) break;
            const u64 start = ((u64)plane * p.count[0] + row) * p.count[1];
            #pragma unroll ROUNDS(Columns::REACHING)
            for (PLACE b = 0; b < Columns::REACHING; b++) {
                const PLACE column = first_column + b;
                if (column > last_column) continue;
                const u64 window = start + column;
#if KIND == MAX
                if (p.places[window] == (i64)i * p.size[1] + j) sum += to<C>(p.d[window]);
#elif KIND == MEAN
                const PLACE count = Rows::length(row, (PLACE)height) * Columns::length(column, (PLACE)width);
                sum += to<C>(p.d[window]) / (C)count;
#else
                sum += to<C>(p.d[window]);
#endif
            }
        }
#if KIND == MEAN_OF_ALL
        sum /= (C)((double)Rows::KERNEL * (double)Columns::KERNEL);
#endif
        put<ADD>(p.y + at, sum);
    }
}
