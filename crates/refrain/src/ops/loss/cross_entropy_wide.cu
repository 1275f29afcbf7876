// Rows that are too wide for registers: a block for each, which reads it once.

constexpr int PIECE = 16 / (int)sizeof(IN);

// What exponentials of numbers below `shift` are relative to: it, unless there is no number above the lowest.
DEVICE COMPUTE base_of(COMPUTE shift) { return shift == limits<COMPUTE>::lowest() ? (COMPUTE)0 : shift; }

KERNEL(cross_entropy, CrossEntropyArgs, p) {
    const i64 classes = p.classes;
    const i64 row = blockIdx.x;
    const IN* x = p.x + row * classes;
    const COMPUTE lowest = limits<COMPUTE>::lowest();
    // The largest number so far, the sum of the exponentials relative to it, and of the distances from it; and how many there were.
    COMPUTE shift = lowest, sum = (COMPUTE)0, distances = (COMPUTE)0, seen = (COMPUTE)0;
    #pragma unroll 2
    for (i64 i = (i64)threadIdx.x * PIECE; i < classes; i += 256 * PIECE) {
        int count = classes - i < PIECE ? (int)(classes - i) : PIECE;
        COMPUTE v[PIECE];
        if (count == PIECE) {
            vec<COMPUTE, PIECE> all = to_all<COMPUTE>(load_anywhere<PIECE>(x + i));
            #pragma unroll
            for (int e = 0; e < PIECE; e++) v[e] = all.at[e];
        } else {
            #pragma unroll
            for (int e = 0; e < PIECE; e++) v[e] = e < count ? to<COMPUTE>(x[i + e]) : lowest;
        }
        COMPUTE largest = shift;
        #pragma unroll
        for (int e = 0; e < PIECE; e++) largest = Larger()(largest, v[e]);
        COMPUTE base = base_of(largest);
        if (largest > shift) {
            sum *= exp_(shift - base);
            if (seen > (COMPUTE)0) distances += seen * (largest - shift);
        }
        shift = largest;
        seen += (COMPUTE)count;
        #pragma unroll
        for (int e = 0; e < PIECE; e++) {
            sum += exp_(v[e] - base);
            if (e < count && shift > lowest) distances += shift - v[e];
        }
    }
    COMPUTE own = shift;
    shift = block_reduce<256>(shift, lowest, Larger());
    sum = block_sum<256>(sum * exp_(own - base_of(shift)));
    distances = block_sum<256>(seen > (COMPUTE)0 ? distances + seen * (shift - own) : (COMPUTE)0);
    COMPUTE log = log_(sum);
    if (threadIdx.x == 0) {
        p.largest[row] = shift;
        p.inverse[row] = (COMPUTE)1 / sum;
        p.partial[row] = loss_of(x, p.ids[row], classes, shift, log, distances, p.smoothing, p.faults);
    }
}
