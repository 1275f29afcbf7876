// A time step of an LSTM. Constants: B (dtype of the bias), and KEEP, whether the gates are kept for the backward pass. What is
// carried is the cell state, which is rounded only where it is stored.

typedef LstmArgs Args;

DEVICE void all_steps(const Args& p);
KERNEL(lstm_forward, LstmArgs, p, BOUNDS) { all_steps(p); }

DEVICE const IN* first_carried(const Args& p) { return p.first_cell; }

struct Gates { C i, f, g, o; };

// `sums` are what the state contributes, with the bias.
DEVICE Gates gates_of(const Inputs& x, const C (&sums)[GATES]) {
    Gates gates;
    gates.i = sigmoid_(x.of[0] + sums[0]);
    gates.f = sigmoid_(x.of[1] + sums[1]);
    gates.g = tanh_(x.of[2] + sums[2]);
    gates.o = sigmoid_(x.of[3] + sums[3]);
    return gates;
}

// The next state, rounded to the dtype of the states. The cell state becomes the next one.
DEVICE IN next(const Gates& gates, C& cell) {
    cell = gates.f * cell + gates.i * gates.g;
    return from<IN>(gates.o * tanh_(cell));
}

// A state, by thread 0 of COUNT, the cell state, by the last one, and what is kept of the gates.
template <int COUNT> DEVICE void store_state(const Args& p, i64 sequence, i64 t, int unit, IN y, C cell, const Gates& g, int thread) {
    const i64 row = sequence * p.steps + t;
    if (thread == 0) p.y[row * HIDDEN + unit] = y;
    if (thread == COUNT - 1) p.cells[row * HIDDEN + unit] = from<IN>(cell);
    if (KEEP) {
        const C kept[4] = {g.i, g.f, g.g, g.o};
        store_by<COUNT>(p.gates + row * (4 * HIDDEN) + unit, kept, thread);
    }
}
