// The gradient of a time step of an LSTM. More constants: OF_CELLS, whether the cell states have a gradient of their own. What is
// carried is the gradient of the cell state from later time steps.

typedef LstmBackwardArgs Args;

DEVICE void all_steps(const Args& p);
KERNEL(lstm_backward, LstmBackwardArgs, p, BOUNDS) { all_steps(p); }

// What the backward pass reads of a time step: its gates, its cell state and the one before it, and the gradients of the state and
// of the cell state.
struct Kept { C i, f, g, o, cell, before, dy, dcell; };

DEVICE Kept kept_at(const Args& p, i64 sequence, i64 t, int unit, bool inside) {
    if (!inside || t < 0) return {};
    const i64 row = sequence * p.steps + t, at = row * HIDDEN + unit;
    const IN* g = p.gates + row * (4 * HIDDEN) + unit;
    const IN* before = t > 0 ? p.cells + (row - 1) * HIDDEN : p.first_cell + sequence * HIDDEN;
    return {to<C>(g[0]), to<C>(g[HIDDEN]), to<C>(g[2 * HIDDEN]), to<C>(g[3 * HIDDEN]), to<C>(p.cells[at]), to<C>(before[unit]),
            to<C>(p.dy[at]), OF_CELLS ? to<C>(p.dcells[at]) : (C)0};
}

// The gradients of the gates before their functions.
struct Slopes { C of_state[GATES]; };

// The state before is used in the product alone.
DEVICE C direct(const Kept&, C) { return (C)0; }

// `d` is the gradient of the state. `cell` begins as the gradient of the
// cell state from later time steps, and becomes that of the cell state before.
DEVICE Slopes slopes_of(const Kept& k, C d, C& cell) {
    Slopes s;
    const C squashed = tanh_(k.cell);
    const C dc = cell + k.dcell + d * k.o * ((C)1 - squashed * squashed);
    s.of_state[0] = dc * k.g * k.i * ((C)1 - k.i);
    s.of_state[1] = dc * k.before * k.f * ((C)1 - k.f);
    s.of_state[2] = dc * k.i * ((C)1 - k.g * k.g);
    s.of_state[3] = d * squashed * k.o * ((C)1 - k.o);
    cell = dc * k.f;
    return s;
}

template <int COUNT> DEVICE void store_slopes(const Args& p, i64 sequence, i64 t, int unit, const Slopes& s, int thread) {
    store_by<COUNT>(p.dx + (sequence * p.steps + t) * (GATES * HIDDEN) + unit, s.of_state, thread);
}

DEVICE void store_first(const Args& p, i64 sequence, int unit, C d, C cell) {
    p.dfirst[sequence * HIDDEN + unit] = from<IN>(d);
    p.dfirst_cell[sequence * HIDDEN + unit] = from<IN>(cell);
}
