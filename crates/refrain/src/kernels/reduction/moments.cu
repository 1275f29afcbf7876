// Count, mean and sum of squared distances from the mean. A thread adds its elements one by one (Welford, 1962);
// parts are merged in f64 (Chan, Golub and LeVeque, 1979), so that a mean far from 0 costs no digits.

struct Local { COMPUTE mean, squares; int count; };
struct State { double mean, squares, count; };
DEVICE Local first() { return {(COMPUTE)0, (COMPUTE)0, 0}; }
DEVICE void add(Local& l, const COMPUTE* x, i64, i64, const Reduction&) {
    l.count += 1;
    COMPUTE distance = x[0] - l.mean;
    l.mean += distance / (COMPUTE)l.count;
    l.squares += distance * (x[0] - l.mean);
}
DEVICE State state(const Local& l) { return {(double)l.mean, (double)l.squares, (double)l.count}; }
DEVICE State merge(State a, State b) {
    if (b.count == 0.0) return a;
    if (a.count == 0.0) return b;
    double count = a.count + b.count, distance = b.mean - a.mean, share = b.count / count;
    return {a.mean + distance * share, a.squares + b.squares + distance * distance * (a.count * share), count};
}
