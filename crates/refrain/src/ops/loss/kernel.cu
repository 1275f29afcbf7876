// Terms of losses. LOSS is one of those below. The pointwise losses have the target as second operand. Constants:
// COMPUTE (the arithmetic), LEVELS (number of quantiles).

#define MSE 1
#define L1 2
// s[1] is delta.
#define HUBER 3
// s[1..] are the levels, extra[0] is the target of dtype TARGET.
#define QUANTILE 4

// Of logits.
#define BCE 5

DEVICE void add(Local& l, const COMPUTE* x, i64 position, i64, const Reduction& r) {
#if LOSS == QUANTILE
    COMPUTE q = (COMPUTE)r.s[1 + position % LEVELS];
    COMPUTE e = to<COMPUTE>(extra<TARGET>(r, 0)[position / LEVELS]) - x[0];
    l.sum += (e < (COMPUTE)0 ? q - (COMPUTE)1 : q) * e;
#else
    COMPUTE e = x[0] - x[1], a = abs_(e);
#if LOSS == BCE
    l.sum += (x[0] < (COMPUTE)0 ? (COMPUTE)0 : x[0]) - x[0] * x[1] + log1p_(exp_(-abs_(x[0])));
#elif LOSS == MSE
    l.sum += e * e;
#elif LOSS == L1
    l.sum += a;
#else
    COMPUTE delta = (COMPUTE)r.s[1];
    l.sum += a < delta ? (COMPUTE)0.5 * e * e : delta * (a - (COMPUTE)0.5 * delta);
#endif
#endif
}
