// The recurrence of a GRU. Constants: IN (dtype of the input's part, states and gates), W (of the weight), COMPUTE (the
// arithmetic), HIDDEN, and WIDE, whether four neighbours of the weight lie at a multiple of their size.

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

// What is kept of the gates for the backward pass. `q` is what r multiplies.
struct Gates { C r, z, n, q; };

// Stores value I by the thread I % COUNT of COUNT.
template <int COUNT, int N> DEVICE void store_by(IN* to, const C (&values)[N], int thread) {
    #pragma unroll
    for (int i = 0; i < N; i++) {
        if (i % COUNT == thread) to[i * HIDDEN] = from<IN>(values[i]);
    }
}
