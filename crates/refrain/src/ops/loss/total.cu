// A sum in f64, divided by s[0]. Threads add up their parts in the arithmetic. Constants: COMPUTE (the arithmetic),
// OUT (dtype of the result).

struct Local { COMPUTE sum; };
struct State { double sum; };
DEVICE Local first(const Reduction&, i64, i64) { return {(COMPUTE)0}; }
DEVICE State state(const Local& l) { return {(double)l.sum}; }
DEVICE State merge(State a, State b) { return {a.sum + b.sum}; }
DEVICE void finish(const Reduction& r, i64 result, State s) {
    put_result<OUT>(r.y[0], result, false, s.sum / r.s[0]);
}
