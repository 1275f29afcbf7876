// Running sums, products and recurrences along the middle of [outer, n, inner]. Constants: KIND, one of those below; COMPUTE (the
// arithmetic); IN and OUT (dtypes); REVERSE, whether step t is element n - 1 - t; ADD; of recurrences also FIRST, whether
// something is before them, and of their gradient DECAY, whether that of the decay is wanted, ADD_DECAY and ADD_FIRST.

#define SUM 1
#define PRODUCT 2
// The gradient of a running product: the steps are s = d[k] + x[k + 1] * s from the end.
#define PRODUCT_GRADIENT 3
// The steps are s = d[k] + x[k] * s.
#define RECURRENCE 4
// The gradient of a recurrence: the steps are those of a running product's gradient.
#define RECURRENCE_GRADIENT 5

#if KIND != RECURRENCE && KIND != RECURRENCE_GRADIENT
#define FIRST false
#define DECAY false
#endif
#if KIND == RECURRENCE
#define DECAY false
#endif

#define WARP_COUNT 8

DEVICE i64 plus(i64 a, i64 b) { return (i64)((u64)a + (u64)b); }
DEVICE float plus(float a, float b) { return a + b; }
DEVICE double plus(double a, double b) { return a + b; }
DEVICE i64 times(i64 a, i64 b) { return (i64)((u64)a * (u64)b); }
DEVICE float times(float a, float b) { return a * b; }
DEVICE double times(double a, double b) { return a * b; }

typedef arithmetic<COMPUTE>::type C;

DEVICE i64 place(const ScanArgs& p, i64 t) { return REVERSE ? p.n - 1 - t : t; }

// What some steps come to. `after` are the steps behind those of `before`.
#if KIND >= PRODUCT_GRADIENT
// The steps together turn s into value + factor * s.
struct State { C value, factor; };
DEVICE State nothing() { return {(C)0, (C)1}; }
// What steps make of a value before them. Nothing stays nothing, also where the product of many factors is infinite.
DEVICE C carried(C value, C factor) { return value == (C)0 && !is_nan(factor) ? (C)0 : factor * value; }
DEVICE State combine(const State& before, const State& after) {
    return {after.value + carried(before.value, after.factor), after.factor * before.factor};
}
DEVICE State moved_up(const State& s, int distance) {
    return {__shfl_up_sync(FULL, s.value, distance), __shfl_up_sync(FULL, s.factor, distance)};
}
DEVICE State of_lane(const State& s, int lane) {
    return {__shfl_sync(FULL, s.value, lane), __shfl_sync(FULL, s.factor, lane)};
}
// Element `at` of a column of `first`, which has no middle.
DEVICE i64 first_at(const ScanArgs& p, i64 base) { return base / (p.n * p.inner) * p.inner + base % p.inner; }
// Step t of the line that begins at `base`.
DEVICE State step(const ScanArgs& p, i64 base, i64 t) {
    const i64 at = base + place(p, t) * p.inner;
    const C value = to<C>(p.d[at]);
#if KIND == RECURRENCE
    const C factor = to<C>(p.x[at]);
    return {FIRST && t == 0 ? value + carried(to<C>(p.first[first_at(p, base)]), factor) : value, factor};
#else
    return {value, t > 0 ? to<C>(p.x[at + p.inner]) : (C)1};
#endif
}
// What the result of step t is multiplied by for another one, if that is wanted.
DEVICE C before(const ScanArgs& p, i64 base, i64 t) {
    const i64 k = place(p, t);
    if (KIND == RECURRENCE || KIND == RECURRENCE_GRADIENT && !DECAY) return (C)0;
    if (k > 0) return to<C>(p.results[base + (k - 1) * p.inner]);
    if (KIND == PRODUCT_GRADIENT) return (C)1;
    return FIRST ? to<C>(p.first[first_at(p, base)]) : (C)0;
}
DEVICE void finish(const ScanArgs& p, i64 base, i64 t, const State& s, C before) {
    const i64 k = place(p, t), at = base + k * p.inner;
    put<ADD>(p.y + at, KIND == PRODUCT_GRADIENT ? before * s.value : s.value);
#if KIND == RECURRENCE_GRADIENT
    // Before nothing there is nothing, also where the gradient is infinite.
    if (DECAY) put<ADD_DECAY>(p.decay_gradient + at, k > 0 || FIRST ? before * s.value : (C)0);
    if (FIRST && k == 0) put<ADD_FIRST>(p.first_gradient + first_at(p, base), carried(s.value, to<C>(p.x[at])));
#endif
}
#else
struct State { C value; };
DEVICE State nothing() { return {KIND == SUM ? (C)0 : (C)1}; }
DEVICE State combine(const State& before, const State& after) {
    return {KIND == SUM ? plus(before.value, after.value) : times(before.value, after.value)};
}
DEVICE State moved_up(const State& s, int distance) { return {__shfl_up_sync(FULL, s.value, distance)}; }
DEVICE State of_lane(const State& s, int lane) { return {__shfl_sync(FULL, s.value, lane)}; }
DEVICE State step(const ScanArgs& p, i64 base, i64 t) { return {to<C>(p.x[base + place(p, t) * p.inner])}; }
DEVICE C before(const ScanArgs&, i64, i64) { return (C)0; }
DEVICE void finish(const ScanArgs& p, i64 base, i64 t, const State& s, C) {
    put<ADD>(p.y + base + place(p, t) * p.inner, s.value);
}
#endif

DEVICE State* totals(const ScanArgs& p) { return reinterpret_cast<State*>(p.totals); }

// What the lanes up to this one come to.
DEVICE State scan_warp(State s, int lane) {
    #pragma unroll
    for (int d = 1; d < 32; d *= 2) {
        const State other = moved_up(s, d);
        if (lane >= d) s = combine(other, s);
    }
    return s;
}
