// Sum and sum of squares of the distances from a pivot: the first element of a result. With an element of the
// sample as the pivot, a mean far from 0 costs no digits. A pivot that lies apart costs at most a factor of the number of elements
// of f64's precision, which only f64 operands can see.

struct Local { double pivot, sum, squares; };
struct __align__(16) State { double sum, squares; };
#define BOUNDS __launch_bounds__(256, 2)

// The pivot of a total whose first element is at `at`.
DEVICE double pivot_at(const Reduction& r, i64 at) {
    double pivot = r.elements > 0 ? to<double>(reinterpret_cast<const IN0*>(r.x[0])[at]) : 0.0;
    // An infinite one would make the mean NaN, wherever else it is infinite.
    return fabs(pivot) <= 1.7976931348623157e+308 ? pivot : 0.0;
}
DEVICE double pivot_of(const Reduction& r, i64 total) { return pivot_at(r, first_place(r, total)); }
DEVICE Local first(const Reduction& r, i64, i64 at) { return {pivot_at(r, at), 0.0, 0.0}; }
DEVICE void add(Local& l, const COMPUTE* x, i64, i64, const Reduction&) {
    double distance = (double)x[0] - l.pivot;
    l.sum += distance;
    l.squares = fma(distance, distance, l.squares);
}
DEVICE State state(const Local& l) { return {l.sum, l.squares}; }
DEVICE State merge(State a, State b) { return {a.sum + b.sum, a.squares + b.squares}; }

// Count, mean and sum of squared distances from the mean.
struct Moments {
    double mean, squares, count;

    DEVICE Moments(const Reduction& r, double pivot, State s) {
        count = (double)r.elements;
        mean = count > 0.0 ? pivot + s.sum / count : 0.0;
        squares = s.squares - s.sum * (s.sum / count);
        // Rounding may leave less than nothing.
        if (squares < 0.0) squares = 0.0;
    }
};
