// The largest element or the mean of each window. Constants: KIND, one of those below; ELEMENT; INDEX.

#define MAX 1
// The mean of the elements in the image, or of all, those in the padding as zeros.
#define MEAN 2
#define MEAN_OF_ALL 3

KERNEL(pool, PoolArgs, p) {
    typedef arithmetic<ELEMENT>::type C;
    const WindowsAt& w = p.windows;
    const INDEX rows = (INDEX)w.count[0], columns = (INDEX)w.count[1], step = (INDEX)gridDim.x * blockDim.x;
    for (INDEX at = (INDEX)blockIdx.x * blockDim.x + threadIdx.x; at < (INDEX)p.n; at += step) {
        const INDEX q = at / columns, column = at - q * columns, plane = q / rows, row = q - plane * rows;
        const ELEMENT* x = p.x + (u64)plane * w.size[0] * w.size[1];
        i64 top = place_of(w, 0, row, 0), left = place_of(w, 1, column, 0);
        const i64 bottom = min(top + w.kernel[0], w.size[0]), right = min(left + w.kernel[1], w.size[1]);
        top = max(top, 0ll), left = max(left, 0ll);
#if KIND == MAX
        i64 best = top * w.size[1] + left;
        C most = to<C>(x[best]);
        for (i64 i = top; i < bottom; i++) {
            for (i64 j = left; j < right; j++) {
                const i64 place = i * w.size[1] + j;
                const C v = to<C>(x[place]);
                if (v > most || (is_nan(v) && !is_nan(most))) most = v, best = place;
            }
        }
        p.y[at] = x[best];
        p.places[at] = best;
#else
        C sum = (C)0;
        for (i64 i = top; i < bottom; i++) {
            for (i64 j = left; j < right; j++) sum += to<C>(x[i * w.size[1] + j]);
        }
        const double count = KIND == MEAN_OF_ALL ? (double)w.kernel[0] * (double)w.kernel[1]
                                                 : (double)((bottom - top) * (right - left));
        p.y[at] = from<ELEMENT>(sum / (C)count);
#endif
    }
}
