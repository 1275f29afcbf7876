// The gradients of weight and bias: sums over rows. Constants: CENTRED, IN_PARTS (whether results are a part's states), else
// OUT (the results' dtype).

DEVICE Local first(const Reduction&, i64, i64) { return {(COMPUTE)0, (COMPUTE)0}; }

// Adds terms of x and dy; `extra` has 1/std and the mean of each row.
DEVICE void add(Local& l, const COMPUTE* x, i64 position, i64, const Reduction& r) {
    COMPUTE m = CENTRED ? extra<COMPUTE>(r, 1)[position] : (COMPUTE)0;
    l.weight += x[1] * ((x[0] - m) * extra<COMPUTE>(r, 0)[position]);
    l.bias += x[1];
}
DEVICE void finish(const Reduction& r, i64 result, State s) {
#if IN_PARTS
    reinterpret_cast<State*>(r.y[0])[result] = s;
#else
    put_result<OUT>(r.y[0], result, r.accumulate[0], s.weight);
    if (CENTRED) put_result<OUT>(r.y[1], result, r.accumulate[1], s.bias);
#endif
}
