// Sums and differences at distances 2^first_bit to 2^(end_bit - 1) within chunks of CHUNK numbers. A chunk consists
// of 2^(log CHUNK - log_columns) stretches of 2^log_columns numbers each, `distance` apart. Constants: IN, OUT,
// COMPUTE (dtypes); CHUNK; LOG_CHUNK; LAST, whether the results are scaled (and added to y if ADD).

#define THREADS 256

typedef COMPUTE C;

// A gap after every 32 numbers, so that numbers at power-of-two distances are in different banks.
DEVICE u32 slot(u32 i) { return i + i / 32; }

// The steps of `BITS` distances, from 2^bit on.
template <int BITS> DEVICE void butterflies(C* chunk, int bit) {
    const int size = 1 << BITS;
    for (u32 g = threadIdx.x; g < CHUNK / size; g += THREADS) {
        u32 low = g & ((1u << bit) - 1), first = ((g >> bit) << (bit + BITS)) | low;
        C v[size];
        #pragma unroll
        for (int i = 0; i < size; i++) v[i] = chunk[slot(first + (i << bit))];
        #pragma unroll
        for (int d = 1; d < size; d *= 2) {
            #pragma unroll
            for (int i = 0; i < size; i++) {
                if ((i & d) == 0) {
                    C a = v[i], b = v[i + d];
                    v[i] = a + b;
                    v[i + d] = a - b;
                }
            }
        }
        #pragma unroll
        for (int i = 0; i < size; i++) chunk[slot(first + (i << bit))] = v[i];
    }
    __syncthreads();
}

KERNEL(hadamard, HadamardArgs, p) {
    const IN* x = p.x;
    OUT* y = p.y;
    const i64 n = p.n, distance = p.distance;
    const int log_columns = (int)p.log_columns, end_bit = (int)p.end_bit;
    __shared__ C chunk[CHUNK + CHUNK / 32];
    const u32 columns = 1u << log_columns;
    // Neighbouring chunks until the next stretch begins, then beyond all stretches.
    const i64 side_by_side = distance >> log_columns;
    const i64 group = blockIdx.x / side_by_side, within = blockIdx.x - group * side_by_side;
    const i64 start = group * (distance << (LOG_CHUNK - log_columns)) + (within << log_columns);
    #pragma unroll 8
    for (u32 i = threadIdx.x; i < CHUNK; i += THREADS) {
        i64 at = start + (i64)(i >> log_columns) * distance + (i & (columns - 1));
        chunk[slot(i)] = at < n ? to<C>(x[at]) : (C)0;
    }
    __syncthreads();
    int bit = (int)p.first_bit;
    for (; bit + 3 <= end_bit; bit += 3) butterflies<3>(chunk, bit);
    if (end_bit - bit == 2) butterflies<2>(chunk, bit);
    if (end_bit - bit == 1) butterflies<1>(chunk, bit);
    #pragma unroll 8
    for (u32 i = threadIdx.x; i < CHUNK; i += THREADS) {
        i64 at = start + (i64)(i >> log_columns) * distance + (i & (columns - 1));
        C v = chunk[slot(i)];
        if (at < n) put<ADD>(y + at, LAST ? (C)(v * (C)p.scale) : v);
    }
}
