// The largest element or the mean of each window. Constants: KIND, one of those below; ELEMENT; INDEX; those of windows.

#define MAX 1
// The mean of the elements in the image, or of all, those in the padding as zeros.
#define MEAN 2
#define MEAN_OF_ALL 3

KERNEL(pool, PoolArgs, p) {
    typedef arithmetic<ELEMENT>::type C;
    typedef window<0> Rows;
    typedef window<1> Columns;
    const PLACE height = (PLACE)p.size[0], width = (PLACE)p.size[1];
    const INDEX rows = (INDEX)p.count[0], columns = (INDEX)p.count[1], step = (INDEX)gridDim.x * blockDim.x;
    for (INDEX at = (INDEX)blockIdx.x * blockDim.x + threadIdx.x; at < (INDEX)p.n; at += step) {
        const INDEX q = at / columns, column = at - q * columns, plane = q / rows, row = q - plane * rows;
        const ELEMENT* x = p.x + (u64)plane * (u64)(p.size[0] * p.size[1]);
        const PLACE top = Rows::begin((PLACE)row), left = Columns::begin((PLACE)column);
#if KIND == MAX
        PLACE best = max(top, (PLACE)0) * width + max(left, (PLACE)0);
        C most = to<C>(x[best]);
#else
        C sum = (C)0;
#endif
        #pragma unroll ROUNDS(KERNEL_0)
        for (PLACE a = 0; a < Rows::KERNEL; a++) {
            const PLACE i = top + a;
            if (i < 0 || i >= height) continue;
            #pragma unroll ROUNDS(KERNEL_1)
            for (PLACE b = 0; b < Columns::KERNEL; b++) {
                const PLACE j = left + b;
                if (j < 0 || j >= width) continue;
                const PLACE place = i * width + j;
                const C v = to<C>(x[place]);
#if KIND == MAX
                if (v > most || (is_nan(v) && !is_nan(most))) most = v, best = place;
#else
                sum += v;
#endif
            }
        }
#if KIND == MAX
        p.y[at] = x[best];
        p.places[at] = best;
#else
        const double all = (double)Rows::KERNEL * (double)Columns::KERNEL;
        const double count = KIND == MEAN_OF_ALL ? all
            : (double)Rows::length((PLACE)row, height) * (double)Columns::length((PLACE)column, width);
        p.y[at] = from<ELEMENT>(sum / (C)count);
#endif
    }
}
