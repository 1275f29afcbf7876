// The gradients of the gates before their functions: those of r, z, n, and of what r multiplies.
struct Slopes { C r, z, n, q; };

DEVICE Slopes slopes_of(const Gates& g, C before, C d) {
    Slopes s;
    s.z = d * (before - g.n) * g.z * ((C)1 - g.z);
    s.n = d * ((C)1 - g.z) * ((C)1 - g.n * g.n);
    s.q = s.n * g.r;
    s.r = s.n * g.q * g.r * ((C)1 - g.r);
    return s;
}

// What the backward pass reads of a time step: its gates, the state before it, and the gradient of its state.
struct Kept { Gates gates; C before, dy; };

DEVICE Kept kept_at(const GruBackwardArgs& p, i64 sequence, i64 t, int unit, bool inside) {
    if (!inside || t < 0) return {};
    const i64 row = sequence * p.steps + t;
    const IN* g = p.gates + row * (4 * HIDDEN) + unit;
    const IN* before = t > 0 ? p.y + (row - 1) * HIDDEN : p.first + sequence * HIDDEN;
    return {{to<C>(g[0]), to<C>(g[HIDDEN]), to<C>(g[2 * HIDDEN]), to<C>(g[3 * HIDDEN])},
            to<C>(before[unit]), to<C>(p.dy[row * HIDDEN + unit])};
}

template <int COUNT> DEVICE void store_slopes(const GruBackwardArgs& p, i64 sequence, i64 t, int unit, const Slopes& s, int thread) {
    const i64 at = (sequence * p.steps + t) * (3 * HIDDEN) + unit;
    const C of_input[3] = {s.r, s.z, s.n}, of_state[3] = {s.r, s.z, s.q};
    store_by<COUNT>(p.dx + at, of_input, thread);
    store_by<COUNT>(p.dh + at, of_state, COUNT - 1 - thread);
}
