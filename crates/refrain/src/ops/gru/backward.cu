// The gradient of a time step of a GRU.

typedef GruBackwardArgs Args;

DEVICE void all_steps(const Args& p);
KERNEL(gru_backward, GruBackwardArgs, p, BOUNDS) { all_steps(p); }

// What the backward pass reads of a time step: its gates (`q` is what r multiplies), the state before it, and the gradient of its
// state.
struct Kept { C r, z, n, q, before, dy; };

DEVICE Kept kept_at(const Args& p, i64 sequence, i64 t, int unit, bool inside) {
    if (!inside || t < 0) return {};
    const i64 row = sequence * p.steps + t;
    const IN* g = p.gates + row * (4 * HIDDEN) + unit;
    const IN* before = t > 0 ? p.y + (row - 1) * HIDDEN : p.first + sequence * HIDDEN;
    return {to<C>(g[0]), to<C>(g[HIDDEN]), to<C>(g[2 * HIDDEN]), to<C>(g[3 * HIDDEN]), to<C>(before[unit]),
            to<C>(p.dy[row * HIDDEN + unit])};
}

// The gradients of the gates before their functions: those of r, z and what r multiplies, and that of n.
struct Slopes { C of_state[GATES], n; };

// The part of the gradient of the state before that goes around the product; `d` is the gradient of the state.
DEVICE C direct(const Kept& k, C d) { return d * k.z; }

DEVICE Slopes slopes_of(const Kept& k, C d, C&) {
    Slopes s;
    s.n = d * ((C)1 - k.z) * ((C)1 - k.n * k.n);
    s.of_state[0] = s.n * k.q * k.r * ((C)1 - k.r);
    s.of_state[1] = d * (k.before - k.n) * k.z * ((C)1 - k.z);
    s.of_state[2] = s.n * k.r;
    return s;
}

template <int COUNT> DEVICE void store_slopes(const Args& p, i64 sequence, i64 t, int unit, const Slopes& s, int thread) {
    const i64 at = (sequence * p.steps + t) * (3 * HIDDEN) + unit;
    const C of_input[3] = {s.of_state[0], s.of_state[1], s.n};
    store_by<COUNT>(p.dx + at, of_input, thread);
    store_by<COUNT>(p.dh + at, s.of_state, COUNT - 1 - thread);
}

DEVICE void store_first(const Args& p, i64 sequence, int unit, C d, C) { p.dfirst[sequence * HIDDEN + unit] = from<IN>(d); }
