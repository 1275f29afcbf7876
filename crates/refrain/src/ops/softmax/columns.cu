// Softmax of columns, and of rows that are too wide for registers. Constants: COMPUTE (the arithmetic), IN (dtype),
// LOG, BACKWARD, ADD.

#if BACKWARD
KERNEL softmax_columns(const IN* y, const IN* dy, IN* dx, i64 n, i64 inner, int shift) {
    Columns c = columns_of(n, inner, shift);
    COMPUTE total = (COMPUTE)0;
    if (c.live) {
        #pragma unroll 4
        for (i64 i = c.start; i < n; i += c.step) {
            COMPUTE d = to<COMPUTE>(dy[c.offset + i * inner]);
            total += LOG ? d : to<COMPUTE>(y[c.offset + i * inner]) * d;
        }
    }
    total = merge_column(c, total, Add());
    if (!c.live) return;
    for (i64 i = c.start; i < n; i += c.step) {
        i64 at = c.offset + i * inner;
        COMPUTE v = to<COMPUTE>(y[at]), d = to<COMPUTE>(dy[at]);
        put<ADD>(dx + at, LOG ? d - exp_(v) * total : v * (d - total));
    }
}
#else
// The largest of some numbers, and the sum of e^(x - largest).
struct Exponentials { COMPUTE largest, sum; };
struct Merge {
    DEVICE COMPUTE part(const Exponentials& s, COMPUTE largest) const {
        // Of nothing but negative infinity the sum is 0, or NaN if a number is NaN.
        return s.largest == limits<COMPUTE>::lowest() ? s.sum : s.sum * exp_(s.largest - largest);
    }
    DEVICE Exponentials operator()(const Exponentials& a, const Exponentials& b) const {
        COMPUTE largest = a.largest > b.largest ? a.largest : b.largest;
        return {largest, part(a, largest) + part(b, largest)};
    }
};

KERNEL softmax_columns(const IN* x, IN* y, i64 n, i64 inner, int shift) {
    Columns c = columns_of(n, inner, shift);
    const COMPUTE lowest = limits<COMPUTE>::lowest();
    Exponentials s = {lowest, (COMPUTE)0};
    if (c.live) {
        #pragma unroll 4
        for (i64 i = c.start; i < n; i += c.step) {
            COMPUTE v = to<COMPUTE>(x[c.offset + i * inner]);
            if (v > s.largest) {
                // 1, or NaN of infinity.
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
        y[at] = from<IN>(LOG ? v - by : exp_(v) * by);
    }
}
#endif
