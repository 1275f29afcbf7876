// The global gradient norm in f64, and the coefficient that brings it down to s[0]. Constants: COMPUTE (the
// arithmetic).

struct State { double squares; };
typedef State Local;
DEVICE Local first(const Reduction&, i64, i64) { return {0.0}; }
DEVICE void add(Local& l, const COMPUTE* x, i64, i64, const Reduction&) {
    double v = (double)x[0];
    l.squares += v * v;
}
DEVICE State state(const Local& l) { return l; }
DEVICE State merge(State a, State b) { return {a.squares + b.squares}; }
DEVICE void finish(const Reduction& r, i64 result, State s) {
    double norm = sqrt(s.squares), coefficient = r.s[0] / (norm + 1e-6);
    put_result<double>(r.y[0], result, false, norm);
    // NaN stays NaN.
    bool whole = coefficient > 1.0 || r.s[0] == (double)INFINITY_F;
    put_result<double>(r.y[1], result, false, whole ? 1.0 : coefficient);
}
