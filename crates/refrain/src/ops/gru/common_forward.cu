// What every forward kernel has. Constants: B (dtype of the bias), and KEEP, whether the gates are kept for the backward pass.

DEVICE Gates gates_of(C r, C z, C x, C q) {
    Gates g;
    g.r = sigmoid_(r);
    g.z = sigmoid_(z);
    g.n = tanh_(x + g.r * q);
    g.q = q;
    return g;
}

// The next state, rounded to the dtype of the states.
DEVICE IN next(const Gates& g, C h) { return from<IN>(g.n + g.z * (h - g.n)); }

// What the input contributes to the gates.
struct Inputs { C r, z, n; };

DEVICE Inputs inputs_at(const GruArgs& p, i64 sequence, i64 t, int unit, bool inside) {
    if (!inside || t >= p.steps) return {};
    const IN* x = p.x + (sequence * p.steps + t) * (3 * HIDDEN) + unit;
    return {to<C>(x[0]), to<C>(x[HIDDEN]), to<C>(x[2 * HIDDEN])};
}

// A state, by thread 0 of COUNT, and what is kept of its gates.
template <int COUNT> DEVICE void store_state(const GruArgs& p, i64 sequence, i64 t, int unit, IN y, const Gates& g, int thread) {
    const i64 row = sequence * p.steps + t;
    if (thread == 0) p.y[row * HIDDEN + unit] = y;
    if (KEEP) {
        const C kept[4] = {g.r, g.z, g.n, g.q};
        store_by<COUNT>(p.gates + row * (4 * HIDDEN) + unit, kept, thread);
    }
}
