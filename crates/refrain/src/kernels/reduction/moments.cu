// Count, sum and sum of squares of the distances from a pivot: the first element of a result. With an element of the
// sample as the pivot, a mean far from 0 costs no digits. A pivot that lies apart costs at most a factor of the number of elements
// of f64's precision, which only f64 operands can see.

struct Local { double pivot, sum, squares; int count; };
struct State { double sum, squares, count; };

DEVICE double pivot_of(const Reduction& r, i64 result) {
    // Results of the first pass that the second one merges have one pivot.
    if (result >= r.totals) result %= r.totals;
    i64 at = result / r.inner * r.n * r.inner + result % r.inner;
    double pivot = to<double>(reinterpret_cast<const IN0*>(r.x[0])[at]);
    // An infinite one would make the mean NaN, wherever else it is infinite.
    return fabs(pivot) <= 1.7976931348623157e+308 ? pivot : 0.0;
}
DEVICE Local first() { return {0.0, 0.0, 0.0, 0}; }
DEVICE void add(Local& l, const COMPUTE* x, i64, i64 result, const Reduction& r) {
    if (l.count == 0) l.pivot = pivot_of(r, result);
    double distance = (double)x[0] - l.pivot;
    l.sum += distance;
    l.squares = fma(distance, distance, l.squares);
    l.count += 1;
}
DEVICE State state(const Local& l) { return {l.sum, l.squares, (double)l.count}; }
DEVICE State merge(State a, State b) { return {a.sum + b.sum, a.squares + b.squares, a.count + b.count}; }

// Count, mean and sum of squared distances from the mean.
struct Moments {
    double mean, squares, count;

    DEVICE Moments(const Reduction& r, i64 result, State s) {
        count = s.count;
        mean = count > 0.0 ? pivot_of(r, result) + s.sum / count : 0.0;
        squares = s.squares - s.sum * (s.sum / count);
        // Rounding may leave less than nothing.
        if (squares < 0.0) squares = 0.0;
    }
};
