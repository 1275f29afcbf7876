// The gradient of pooling: each element of the images sums what its windows give it, in their order. Constants: KIND, one
// of those below; ELEMENT; INDEX; ADD.

#define MAX 1
#define MEAN 2
#define MEAN_OF_ALL 3

// How many elements of window i lie in the image along an axis.
DEVICE i64 length_of(const WindowsAt& w, int axis, i64 i) {
    const i64 first = place_of(w, axis, i, 0);
    return min(first + w.kernel[axis], w.size[axis]) - max(first, 0ll);
}

KERNEL(pool_backward, PoolBackwardArgs, p) {
    typedef arithmetic<ELEMENT>::type C;
    const WindowsAt& w = p.windows;
    const INDEX height = (INDEX)w.size[0], width = (INDEX)w.size[1], step = (INDEX)gridDim.x * blockDim.x;
    for (INDEX at = (INDEX)blockIdx.x * blockDim.x + threadIdx.x; at < (INDEX)p.n; at += step) {
        const INDEX q = at / width, plane = q / height;
        const i64 j = at - q * width, i = q - plane * height, place = i * w.size[1] + j;
        const i64 last_row = last_window(w, 0, i), last_column = last_window(w, 1, j);
        C sum = (C)0;
        for (i64 row = first_window(w, 0, i); row <= last_row; row++) {
            for (i64 column = first_window(w, 1, j); column <= last_column; column++) {
                const u64 window = ((u64)plane * w.count[0] + row) * w.count[1] + column;
#if KIND == MAX
                if (p.places[window] == place) sum += to<C>(p.d[window]);
#elif KIND == MEAN
                sum += to<C>(p.d[window]) / (C)(length_of(w, 0, row) * length_of(w, 1, column));
#else
                sum += to<C>(p.d[window]);
#endif
            }
        }
#if KIND == MEAN_OF_ALL
        sum /= (C)((double)w.kernel[0] * (double)w.kernel[1]);
#endif
        put<ADD>(p.y + at, sum);
    }
}
