// Sums of elements, which wrap around in integers. Constant: ELEMENT.

typedef arithmetic<ELEMENT>::type C;

DEVICE i64 plus(i64 a, i64 b) { return (i64)((u64)a + (u64)b); }
DEVICE float plus(float a, float b) { return a + b; }
DEVICE double plus(double a, double b) { return a + b; }
