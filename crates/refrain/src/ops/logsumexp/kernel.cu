// The reducer of ln(sum(e^x)): the largest of some numbers, and the sum of e^(x - largest). Constants: COMPUTE; OUT.

struct State { COMPUTE largest, sum; };
typedef State Local;

// e^(x - largest); 1 for the largest itself, which may be infinite.
DEVICE COMPUTE power(COMPUTE x, COMPUTE largest) { return x == largest ? (COMPUTE)1 : exp_(x - largest); }

DEVICE Local first(const Reduction&, i64, i64) { return {limits<COMPUTE>::lowest(), (COMPUTE)0}; }
DEVICE void add(Local& l, const COMPUTE* x, i64, i64, const Reduction&) {
    if (x[0] > l.largest) {
        l.sum = l.sum * power(l.largest, x[0]) + (COMPUTE)1;
        l.largest = x[0];
    } else {
        l.sum += power(x[0], l.largest);
    }
}
DEVICE State state(const Local& l) { return l; }
DEVICE State merge(State a, State b) {
    COMPUTE largest = a.largest > b.largest ? a.largest : b.largest;
    return {largest, a.sum * power(a.largest, largest) + b.sum * power(b.largest, largest)};
}
DEVICE void finish(const Reduction& r, i64 result, State s) {
    put_result<OUT>(r.y[0], result, false, log_(s.sum) + s.largest);
}
