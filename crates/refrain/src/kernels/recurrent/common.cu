// A recurrent layer through all time steps. A plan says where the weight is (`resident.cu`, `clustered.cu`, `streamed.cu`), a cell
// what a time step computes from the sums of the products. A cell has, after the plan's part and before the plan's kernel:
//
// forward:  Args, the kernel's parameters
//           first_carried(p), the first of what `next` carries from time step to time step
//           Gates, gates_of(x, sums), next(gates, carried): a state, rounded
//           store_state<COUNT>(p, sequence, t, unit, y, carried, gates, thread)
// backward: Args
//           Kept, kept_at(p, sequence, t, unit, inside), with `dy`
//           Slopes, with `of_state[GATES]`, slopes_of(kept, d, carried), and direct(kept, d)
//           store_slopes<COUNT>(p, sequence, t, unit, slopes, thread), store_first(p, sequence, unit, d, carried)
//
// Constants: GATES, CARRIED (how many numbers a feature carries from time step to time step beside its state: 0 or 1), IN (dtype
// of the input's part, states and gates), W (of the weight), COMPUTE (the arithmetic), HIDDEN, and WIDE, whether four neighbours
// of the weight lie at a multiple of their size.

typedef arithmetic<COMPUTE>::type C;
typedef vec<C, 4> Four;

// A number of the weight, rounded to the dtype of the states.
DEVICE C weight(W x) { return to<C>(from<IN>(to<C>(x))); }

// Four neighbours of the row of the weight that begins at `row`, from column `at` on; zeros beyond its end.
DEVICE Four weights(const W* row, int at) {
    Four w;
    if (WIDE && at + 4 <= HIDDEN) {
        const vec<W, 4> v = load<4>(row + at);
        #pragma unroll
        for (int l = 0; l < 4; l++) w.at[l] = weight(v.at[l]);
    } else {
        #pragma unroll
        for (int l = 0; l < 4; l++) w.at[l] = at + l < HIDDEN ? weight(row[at + l]) : (C)0;
    }
    return w;
}

// What the input contributes to the gates of a feature.
struct Inputs { C of[GATES]; };

DEVICE Inputs inputs_at(const IN* inputs, i64 steps, i64 sequence, i64 t, int unit, bool inside) {
    if (!inside || t >= steps) return {};
    const IN* x = inputs + (sequence * steps + t) * (GATES * HIDDEN) + unit;
    Inputs in;
    #pragma unroll
    for (int g = 0; g < GATES; g++) in.of[g] = to<C>(x[g * HIDDEN]);
    return in;
}

// Stores value I by the thread I % COUNT of COUNT.
template <int COUNT, int N> DEVICE void store_by(IN* to, const C (&values)[N], int thread) {
    #pragma unroll
    for (int i = 0; i < N; i++) {
        if (i % COUNT == thread) to[i * HIDDEN] = from<IN>(values[i]);
    }
}
