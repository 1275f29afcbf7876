// Reducers. KIND is one of those below; MAXIMUM: whether the extreme is the largest. Constants: COMPUTE (the
// arithmetic), OUT (dtype of the result), IN0 (dtype of the operand).

#define KIND_SUM 1
#define KIND_VARIANCE 2
#define KIND_EXTREME 3
#define KIND_POSITION 4
#define KIND_TIES 5
#define KIND_PRODUCT 6

#if KIND != KIND_VARIANCE
#define BOUNDS __launch_bounds__(256, 3)
#endif

// Strictly more extreme, or the first NaN.
template <typename C> DEVICE bool beats(C a, C b) {
    return (MAXIMUM ? b > a : b < a) || (is_nan(b) && !is_nan(a));
}

DEVICE i64 plus(i64 a, i64 b) { return (i64)((u64)a + (u64)b); }
DEVICE float plus(float a, float b) { return a + b; }
DEVICE double plus(double a, double b) { return a + b; }
DEVICE i64 times(i64 a, i64 b) { return (i64)((u64)a * (u64)b); }
DEVICE float times(float a, float b) { return a * b; }
DEVICE double times(double a, double b) { return a * b; }
DEVICE i64 over(i64 a, double) { return a; }
DEVICE float over(float a, double b) { return a / (float)b; }
DEVICE double over(double a, double b) { return a / b; }

#if KIND == KIND_SUM || KIND == KIND_TIES
struct State { COMPUTE sum; };
typedef State Local;
DEVICE Local first(const Reduction&, i64, i64) { return {(COMPUTE)0}; }
DEVICE State merge(State a, State b) { return {plus(a.sum, b.sum)}; }
DEVICE State state(const Local& l) { return l; }
#endif

#if KIND == KIND_SUM
// s[0] is the divisor.
DEVICE void add(Local& l, const COMPUTE* x, i64, i64, const Reduction&) { l.sum = plus(l.sum, x[0]); }
DEVICE void finish(const Reduction& r, i64 result, State s) {
    put_result<OUT>(r.y[0], result, r.accumulate[0], over(s.sum, r.s[0]));
}
#endif

#if KIND == KIND_PRODUCT
struct State { COMPUTE product; };
typedef State Local;
DEVICE Local first(const Reduction&, i64, i64) { return {(COMPUTE)1}; }
DEVICE void add(Local& l, const COMPUTE* x, i64, i64, const Reduction&) { l.product = times(l.product, x[0]); }
DEVICE State state(const Local& l) { return l; }
DEVICE State merge(State a, State b) { return {times(a.product, b.product)}; }
DEVICE void finish(const Reduction& r, i64 result, State s) { put_result<OUT>(r.y[0], result, false, s.product); }
#endif

#if KIND == KIND_TIES
// `extra` has the extremes and their gradient. Result: the gradient divided by the number of elements that share it.
DEVICE void add(Local& l, const COMPUTE* x, i64, i64 result, const Reduction& r) {
    COMPUTE e = to<COMPUTE>(extra<IN0>(r, 0)[result]);
    if (x[0] == e || (is_nan(x[0]) && is_nan(e))) l.sum += (COMPUTE)1;
}
DEVICE void finish(const Reduction& r, i64 result, State s) {
    put_result<OUT>(r.y[0], result, false, to<COMPUTE>(extra<IN0>(r, 1)[result]) / s.sum);
}
#endif

#if KIND == KIND_EXTREME
struct State { COMPUTE value; };
typedef State Local;
DEVICE Local first(const Reduction&, i64, i64) { return {MAXIMUM ? limits<COMPUTE>::lowest() : limits<COMPUTE>::highest()}; }
DEVICE void add(Local& l, const COMPUTE* x, i64, i64, const Reduction&) {
    if (beats(l.value, x[0])) l.value = x[0];
}
DEVICE State state(const Local& l) { return l; }
DEVICE State merge(State a, State b) { return beats(a.value, b.value) ? b : a; }
DEVICE void finish(const Reduction& r, i64 result, State s) { put_result<OUT>(r.y[0], result, false, s.value); }
#endif

#if KIND == KIND_POSITION
struct State { COMPUTE value; i64 position; };
typedef State Local;
DEVICE Local first(const Reduction&, i64, i64) {
    return {MAXIMUM ? limits<COMPUTE>::lowest() : limits<COMPUTE>::highest(), limits<i64>::highest()};
}
// Among equal elements, the first one wins; a later one wins only over no element at all.
DEVICE State merge(State a, State b) {
    bool equal = a.value == b.value || (is_nan(a.value) && is_nan(b.value));
    return equal ? (b.position < a.position ? b : a) : beats(a.value, b.value) ? b : a;
}
DEVICE void add(Local& l, const COMPUTE* x, i64 position, i64, const Reduction&) { l = merge(l, {x[0], position}); }
DEVICE State state(const Local& l) { return l; }
DEVICE void finish(const Reduction& r, i64 result, State s) { put_result<OUT>(r.y[0], result, false, s.position); }
#endif

#if KIND == KIND_VARIANCE
// s[0] is the correction. The mean is the second result.
DEVICE void finish(const Reduction& r, i64 result, State sums) {
    Moments s(r, pivot_of(r, result), sums);
    double nan = (double)NAN_F, by = s.count - r.s[0];
    put_result<OUT>(r.y[0], result, false, s.count > 0.0 ? s.squares / (by > 0.0 ? by : 0.0) : nan);
    put_result<COMPUTE>(r.y[1], result, false, s.count > 0.0 ? s.mean : nan);
}
#endif
