// A time step of a GRU. Constants: B (dtype of the bias), and KEEP, whether the gates are kept for the backward pass. What is
// carried is the state itself.

typedef GruArgs Args;

DEVICE void all_steps(const Args& p);
KERNEL(gru_forward, GruArgs, p, BOUNDS) { all_steps(p); }

DEVICE const IN* first_carried(const Args& p) { return p.first; }

// `q` is what r multiplies.
struct Gates { C r, z, n, q; };

// `sums` are what the state contributes, with the bias.
DEVICE Gates gates_of(const Inputs& x, const C (&sums)[GATES]) {
    Gates g;
    g.r = sigmoid_(x.of[0] + sums[0]);
    g.z = sigmoid_(x.of[1] + sums[1]);
    g.n = tanh_(x.of[2] + g.r * sums[2]);
    g.q = sums[2];
    return g;
}

// The next state, rounded to the dtype of the states.
DEVICE IN next(const Gates& g, C& h) {
    const IN y = from<IN>(g.n + g.z * (h - g.n));
    h = to<C>(y);
    return y;
}

// A state, by thread 0 of COUNT, and what is kept of its gates.
template <int COUNT> DEVICE void store_state(const Args& p, i64 sequence, i64 t, int unit, IN y, C, const Gates& g, int thread) {
    const i64 row = sequence * p.steps + t;
    if (thread == 0) p.y[row * HIDDEN + unit] = y;
    if (KEEP) {
        const C kept[4] = {g.r, g.z, g.n, g.q};
        store_by<COUNT>(p.gates + row * (4 * HIDDEN) + unit, kept, thread);
    }
}
