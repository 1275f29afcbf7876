// The factors of some columns of each matrix, rows `first` and below: `u` above the diagonal, and below it `l`, whose diagonal is 1. The
// largest number of a column comes first: `rows` says which row it was in. Constants: COMPUTE.

typedef COMPUTE C;

KERNEL(panel, PanelArgs, p) {
    __shared__ C largest[THREADS];
    __shared__ i64 where[THREADS];
    const i64 n = p.n, end = p.first + p.size;
    C* a = p.a + (i64)blockIdx.x * n * n;
    i64* rows = p.rows + (i64)blockIdx.x * n;
    for (i64 j = p.first; j < end; j++) {
        C best = (C)-1;
        i64 at = j;
        for (i64 i = j + threadIdx.x; i < n; i += THREADS) {
            const C v = abs(a[i * n + j]);
            // NaN is larger than all numbers, so that it is reported.
            if (v > best || v != v) best = v, at = i;
        }
        largest[threadIdx.x] = best;
        where[threadIdx.x] = at;
        __syncthreads();
        for (int half = THREADS / 2; half > 0; half /= 2) {
            if (threadIdx.x < half) {
                const C mine = largest[threadIdx.x], other = largest[threadIdx.x + half];
                const i64 row = where[threadIdx.x + half];
                // Of equal ones the first, so that the order of threads does not matter.
                const bool first = other == mine && row < where[threadIdx.x];
                if (mine == mine && (other > mine || other != other || first)) {
                    largest[threadIdx.x] = other;
                    where[threadIdx.x] = row;
                }
            }
            __syncthreads();
        }
        const i64 pivot = where[0];
        if (threadIdx.x == 0) {
            rows[j] = pivot;
            if (!(largest[0] > (C)0)) report(p.faults, (i64)blockIdx.x, j);
        }
        if (pivot != j) {
            for (i64 c = p.first + threadIdx.x; c < end; c += THREADS) {
                const C v = a[j * n + c];
                a[j * n + c] = a[pivot * n + c];
                a[pivot * n + c] = v;
            }
        }
        __syncthreads();
        const C top = a[j * n + j];
        for (i64 i = j + 1 + threadIdx.x; i < n; i += THREADS) a[i * n + j] /= top;
        __syncthreads();
        const i64 width = end - j - 1, all = (n - j - 1) * width;
        for (i64 t = threadIdx.x; t < all; t += THREADS) {
            const i64 i = j + 1 + t / width, c = j + 1 + t % width;
            a[i * n + c] -= a[i * n + j] * a[j * n + c];
        }
        __syncthreads();
    }
}
