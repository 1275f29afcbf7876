// Functions of two numbers, with two tensors or a tensor and a scalar, and their derivatives. FUNCTION is one of
// those below. FORM: both operands (x[0], x[1]), SCALAR_RIGHT (x[0], s[0]), SCALAR_LEFT (s[0], x[0]),
// LEFT_DERIVATIVE and RIGHT_DERIVATIVE (a, b and the gradient).

enum { ADD_, SUB, MUL, DIV, POW, MAXIMUM, MINIMUM, EQ, NE, LT, LE, GT, GE, AND, OR, XOR };
enum { BOTH, SCALAR_RIGHT, SCALAR_LEFT, LEFT_DERIVATIVE, RIGHT_DERIVATIVE };

DEVICE i64 plus(i64 a, i64 b) { return (i64)((u64)a + (u64)b); }
DEVICE i64 minus(i64 a, i64 b) { return (i64)((u64)a - (u64)b); }
DEVICE i64 times(i64 a, i64 b) { return (i64)((u64)a * (u64)b); }
// Towards zero, and 0 where the divisor is 0; wraps around.
DEVICE i64 over(i64 a, i64 b) { return b == 0 ? 0 : b == -1 ? minus(0, a) : a / b; }
DEVICE i64 power(i64 base, i64 e) {
    if (e == 0 || base == 1) return 1;
    if (base == -1) return 1 - 2 * (e & 1);
    if (e < 0) return 0;
    i64 result = 1;
    for (; e > 0; e >>= 1) {
        if (e & 1) result = times(result, base);
        base = times(base, base);
    }
    return result;
}
template <typename R> DEVICE R plus(R a, R b) { return a + b; }
template <typename R> DEVICE R minus(R a, R b) { return a - b; }
template <typename R> DEVICE R times(R a, R b) { return a * b; }
template <typename R> DEVICE R over(R a, R b) { return a / b; }
template <typename R> DEVICE R power(R a, R b) { return pow_(a, b); }

template <typename N> DEVICE N function(N a, N b) {
    switch (FUNCTION) {
    case ADD_: return plus(a, b);
    case SUB: return minus(a, b);
    case MUL: return times(a, b);
    case DIV: return over(a, b);
    case POW: return power(a, b);
    case MAXIMUM: return a > b || is_nan(a) ? a : b;
    case MINIMUM: return a < b || is_nan(a) ? a : b;
    case EQ: return (N)(a == b);
    case NE: return (N)(a != b);
    case LT: return (N)(a < b);
    case LE: return (N)(a <= b);
    case GT: return (N)(a > b);
    case GE: return (N)(a >= b);
    case AND: return (N)(a != (N)0 && b != (N)0);
    case OR: return (N)(a != (N)0 || b != (N)0);
    default: return (N)((a != (N)0) != (b != (N)0));
    }
}

// The gradient goes to the operand that was chosen, half to each if they were equal.
template <typename R> DEVICE R share(bool chosen, bool equal, R d) {
    return equal ? (R)0.5 * d : chosen ? d : (R)0;
}

template <typename R> DEVICE R derivative(R a, R b, R d) {
    const bool left = FORM == LEFT_DERIVATIVE;
    switch (FUNCTION) {
    case MUL: return left ? b * d : a * d;
    case DIV: return left ? d / b : -(d * a) / (b * b);
    case POW:
        if (left) return b == (R)0 ? (R)0 * d : d * b * pow_(a, b - (R)1);
        return a == (R)0 ? (R)0 * d : d * pow_(a, b) * log_(a);
    case MAXIMUM: return share(left ? a > b : b > a, a == b, d);
    case MINIMUM: return share(left ? a < b : b < a, a == b, d);
    case SUB: return left ? d : -d;
    default: return d;
    }
}
DEVICE i64 derivative(i64, i64, i64) { return 0; }

DEVICE COMPUTE apply(const COMPUTE* x, const double* s) {
    switch (FORM) {
    case BOTH: return function(x[0], x[INPUTS > 1]);
    case SCALAR_RIGHT: return function(x[0], cast_to<COMPUTE>::of(s[0]));
    case SCALAR_LEFT: return function(cast_to<COMPUTE>::of(s[0]), x[0]);
    default: return derivative(x[0], x[INPUTS > 1], x[INPUTS > 2 ? 2 : 0]);
    }
}
