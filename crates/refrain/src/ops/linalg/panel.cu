// The factors of some columns of each matrix, rows `first` and below: `u` above the diagonal, and below it `l`, whose diagonal is 1. Of
// each column, the largest number is moved to the diagonal: `moves` says which rows are moved, and from where, counted from `first` on; it
// has those of the block and up to as many others, or -1. A thread has ROWS rows in its registers. Constants: COMPUTE; THREADS; BLOCK,
// columns at most; ROWS; WIDE, numbers that are loaded at a time.

typedef COMPUTE C;

KERNEL(panel, PanelArgs, p, __launch_bounds__(THREADS)) {
    __shared__ C best[32], top[BLOCK], above[BLOCK];
    __shared__ int where[32], rows[2 * BLOCK], from[2 * BLOCK];
    const int left = (int)(p.n - p.first), size = (int)p.size;
    C* a = p.a + (i64)blockIdx.x * p.batch + p.first * (p.stride + 1);
    C r[ROWS][BLOCK];
    // Whole panels lie at multiples of 16 bytes.
    #pragma unroll
    for (int q = 0; q < ROWS; q++) {
        const int i = threadIdx.x + q * THREADS;
        #pragma unroll
        for (int k = 0; k < BLOCK; k += WIDE) {
            if (size == BLOCK && i < left) {
                const vec<C, WIDE> v = load<WIDE>(a + i * p.stride + k);
                #pragma unroll
                for (int l = 0; l < WIDE; l++) r[q][k + l] = v.at[l];
            } else {
                #pragma unroll
                for (int l = 0; l < WIDE; l++) r[q][k + l] = i < left && k + l < size ? a[i * p.stride + k + l] : (C)0;
            }
        }
    }
    for (int i = threadIdx.x; i < 2 * BLOCK; i += THREADS) {
        rows[i] = i < size ? i : -1;
        from[i] = i;
    }
    #pragma unroll
    for (int j = 0; j < BLOCK; j++) {
        if (j >= size) break;
        C largest = (C)-1;
        int pivot = j;
        #pragma unroll
        for (int q = 0; q < ROWS; q++) {
            const int i = threadIdx.x + q * THREADS;
            // NaN is as large as infinity, so that it is found at the latest when nothing is left beside it.
            const C v = r[q][j] == r[q][j] ? abs(r[q][j]) : (C)INFINITY_F;
            if (i >= j && i < left && v > largest) largest = v, pivot = i;
        }
        #pragma unroll
        for (int apart = 16; apart > 0; apart /= 2) {
            const C other = __shfl_xor_sync(~0u, largest, apart);
            const int row = __shfl_xor_sync(~0u, pivot, apart);
            // Of equal ones the first, so that the order of threads does not matter.
            if (other > largest || (other == largest && row < pivot)) largest = other, pivot = row;
        }
        if (threadIdx.x % 32 == 0) {
            best[threadIdx.x / 32] = largest;
            where[threadIdx.x / 32] = pivot;
        }
        __syncthreads();
        #pragma unroll
        for (int w = 0; w < THREADS / 32; w++) {
            if (best[w] > largest || (best[w] == largest && where[w] < pivot)) largest = best[w], pivot = where[w];
        }
        #pragma unroll
        for (int q = 0; q < ROWS; q++) {
            const int i = threadIdx.x + q * THREADS;
            #pragma unroll
            for (int k = 0; k < BLOCK; k++) {
                if (i == pivot) top[k] = r[q][k];
                if (i == j) above[k] = r[q][k];
            }
        }
        __syncthreads();
        #pragma unroll
        for (int q = 0; q < ROWS; q++) {
            const int i = threadIdx.x + q * THREADS;
            #pragma unroll
            for (int k = 0; k < BLOCK; k++) r[q][k] = i == j ? top[k] : i == pivot ? above[k] : r[q][k];
            if (i <= j) continue;
            const C factor = r[q][j] / top[j];
            r[q][j] = factor;
            #pragma unroll
            for (int k = j + 1; k < BLOCK; k++) r[q][k] -= factor * top[k];
        }
        if (threadIdx.x == 0) {
            if (!(abs(top[j]) > (C)0)) report(p.faults, (i64)blockIdx.x, p.first + j);
            int slot = pivot;
            if (pivot >= size) for (slot = BLOCK; rows[slot] >= 0 && rows[slot] != pivot; slot++) {}
            if (rows[slot] < 0) {
                rows[slot] = pivot;
                from[slot] = pivot;
            }
            const int moved = from[j];
            from[j] = from[slot];
            from[slot] = moved;
        }
        __syncthreads();
    }
    #pragma unroll
    for (int q = 0; q < ROWS; q++) {
        const int i = threadIdx.x + q * THREADS;
        #pragma unroll
        for (int k = 0; k < BLOCK; k += WIDE) {
            if (i >= left) continue;
            if (size == BLOCK) {
                vec<C, WIDE> v;
                #pragma unroll
                for (int l = 0; l < WIDE; l++) v.at[l] = r[q][k + l];
                store<WIDE>(a + i * p.stride + k, v);
            } else {
                #pragma unroll
                for (int l = 0; l < WIDE; l++) if (k + l < size) a[i * p.stride + k + l] = r[q][k + l];
            }
        }
    }
    i64* moves = p.moves + (i64)blockIdx.x * (4 * BLOCK);
    for (int i = threadIdx.x; i < 2 * BLOCK; i += THREADS) {
        moves[i] = rows[i];
        moves[2 * BLOCK + i] = from[i];
    }
}
