// The reductions of batch norm: the statistics of the channels, or the gradients of weight and bias. Constants:
// COMPUTE (the arithmetic), PARAMETER (dtype of parameters and running statistics), BACKWARD.

#if BACKWARD
// The sums of dy and of dy (x - mean). Extra operands: the means, 1/std, and where to store the unmodified sums.
// Results: dweight, dbias.
struct __align__(2 * COMPUTE_SIZE) State { COMPUTE level, slope; };
#define BOUNDS __launch_bounds__(256, 2)
struct Local { COMPUTE mean, level, slope; };
DEVICE Local first(const Reduction& r, i64 channel, i64) {
    return {extra<COMPUTE>(r, 0)[channel], (COMPUTE)0, (COMPUTE)0};
}
DEVICE State state(const Local& l) { return {l.level, l.slope}; }
DEVICE State merge(State a, State b) { return {a.level + b.level, a.slope + b.slope}; }
DEVICE void add(Local& l, const COMPUTE* x, i64, i64, const Reduction&) {
    l.level += x[1];
    l.slope += x[1] * (x[0] - l.mean);
}
DEVICE void finish(const Reduction& r, i64 channel, State s) {
    COMPUTE slope = s.slope * extra<COMPUTE>(r, 1)[channel];
    put_result<PARAMETER>(r.y[0], channel, r.accumulate[0], slope);
    put_result<PARAMETER>(r.y[1], channel, r.accumulate[1], s.level);
    COMPUTE* sums = reinterpret_cast<COMPUTE*>(r.extra[2]) + 2 * channel;
    sums[0] = s.level;
    sums[1] = slope;
}
#else
// The running statistic that moved from `old` towards that of the batch.
DEVICE PARAMETER moved(PARAMETER old, double momentum, double batch) {
    return from<PARAMETER>((1.0 - momentum) * to<double>(old) + momentum * batch);
}
DEVICE bool finite(PARAMETER x) { return fabs(to<double>(x)) < (double)INFINITY_F; }

struct Statistics { double mean, squares, inv; };

// Those of a channel, whose values have the pivot and the sums. `share` is 1 by their number: one division, beside loads,
// instead of one for each statistic behind the sums.
DEVICE Statistics statistics(const Reduction& r, double pivot, double share, State s) {
    double away = s.sum * share, squares = s.squares - s.sum * away;
    // Rounding may leave less than nothing.
    if (squares < 0.0) squares = 0.0;
    return {pivot + away, squares, rsqrt(squares * share + r.s[1])};
}

// Results: mean and 1/std, and the new running statistics. Extra operands: the old ones. s: momentum, eps. A channel that
// would get a running statistic that is not finite keeps both.
DEVICE void store_statistics(const Reduction& r, i64 channel, const Statistics& s) {
    put_result<COMPUTE>(r.y[0], channel, false, s.mean);
    put_result<COMPUTE>(r.y[1], channel, false, s.inv);
    PARAMETER old_mean = extra<PARAMETER>(r, 0)[channel], old_var = extra<PARAMETER>(r, 1)[channel];
    PARAMETER mean = moved(old_mean, r.s[0], s.mean);
    PARAMETER var = moved(old_var, r.s[0], s.squares / ((double)r.elements - 1.0));
    bool both = finite(mean) && finite(var);
    reinterpret_cast<PARAMETER*>(r.y[2])[channel] = both ? mean : old_mean;
    reinterpret_cast<PARAMETER*>(r.y[3])[channel] = both ? var : old_var;
}
DEVICE void finish(const Reduction& r, i64 channel, State sums) {
    store_statistics(r, channel, statistics(r, pivot_of(r, channel), 1.0 / (double)r.elements, sums));
}
#endif
