// Pads a tensor. Constants: UNIT; INDEX; RANK, the number of axes; MODE, one of those below.

#define CONSTANT 1
#define REFLECT 2
#define REPLICATE 3
#define CIRCULAR 4

// Where place `at` of a padded axis comes from. For a place that gets the value, an index past the end.
DEVICE INDEX source_of(INDEX at, INDEX before, INDEX size) {
#if MODE == CONSTANT
    // Before x, this wraps around.
    return at - before;
#elif MODE == REPLICATE
    return at < before ? 0 : min(at - before, size - 1);
#elif MODE == CIRCULAR
    const INDEX i = at < before ? at + size - before : at - before;
    return i < size ? i : i - size;
#else
    const INDEX i = at < before ? before - at : at - before;
    return i < size ? i : 2 * (size - 1) - i;
#endif
}

KERNEL(pad, PadArgs, p) {
    const UNIT* x = p.x;
    UNIT* y = p.y;
    const INDEX step = (INDEX)gridDim.x * blockDim.x;
    for (INDEX at = (INDEX)blockIdx.x * blockDim.x + threadIdx.x; at < (INDEX)p.n; at += step) {
        INDEX rest = at;
        u64 from = 0;
        bool inside = true;
        #pragma unroll
        for (int d = RANK - 1; d >= 0; d--) {
            const INDEX q = rest / (INDEX)p.shape[d];
            const INDEX i = source_of(rest - q * (INDEX)p.shape[d], (INDEX)p.before[d], (INDEX)p.size[d]);
            inside = inside && i < (INDEX)p.size[d];
            from += (u64)i * p.strides[d];
            rest = q;
        }
        y[at] = inside ? x[from] : filled<UNIT>::with(p.value);
    }
}
