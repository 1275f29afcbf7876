// Softmax of columns, and of rows that are too wide for registers. Constants: COMPUTE (the arithmetic), IN (dtype), LOG.

// The largest of some numbers, and the sum of e^(x - largest).
struct Exponentials { COMPUTE largest, sum; };
struct Merge {
    DEVICE COMPUTE part(const Exponentials& s, COMPUTE largest) const {
        // If all numbers are negative infinity, the sum is 0, or NaN if a number is NaN.
        return s.largest == limits<COMPUTE>::lowest() ? s.sum : s.sum * exp_(s.largest - largest);
    }
    DEVICE Exponentials operator()(const Exponentials& a, const Exponentials& b) const {
        COMPUTE largest = a.largest > b.largest ? a.largest : b.largest;
        return {largest, part(a, largest) + part(b, largest)};
    }
};

KERNEL(softmax_columns, SoftmaxColumnsArgs, p) {
    const IN* x = p.x;
    const i64 n = p.at.n, inner = p.at.inner;
    Columns c = columns_of(p.at);
    const COMPUTE lowest = limits<COMPUTE>::lowest();
    Exponentials s = {lowest, (COMPUTE)0};
    if (c.live) {
        #pragma unroll 4
        for (i64 i = c.start; i < n; i += c.step) {
            COMPUTE v = to<COMPUTE>(x[c.offset + i * inner]);
            if (v > s.largest) {
                // This is 1, or NaN if v is infinite.
                s.sum = s.sum * exp_(s.largest - v) + ((COMPUTE)1 + (v - v));
                s.largest = v;
            } else if (v != lowest) {
                s.sum += exp_(v - s.largest);
            }
        }
    }
    s = merge_column(c, s, Merge());
    if (!c.live) return;
    COMPUTE by = LOG ? log_(s.sum) : (COMPUTE)1 / s.sum;
    for (i64 i = c.start; i < n; i += c.step) {
        i64 at = c.offset + i * inner;
        COMPUTE v = to<COMPUTE>(x[at]) - s.largest;
        p.y[at] = from<IN>(LOG ? v - by : exp_(v) * by);
    }
}
