// A norm of a row in registers: layer norm, or root-mean-square norm. Constants: those of rows (lanes.cu), IN (dtype of rows),
// PARAMETER (dtype of weight and bias), CENTRED. This text is also part of the kernels of matrix products, so every product and
// sum is rounded as it is written here: what the compiler would contract depends on the text around it.

typedef IN Number;
constexpr int ROW_LANES = LANES;

// Weight and bias of a lane's vectors, each loaded when it is needed.
struct FromMemory {
    const PARAMETER *weight, *bias;
    template <typename ARGS> DEVICE FromMemory(const ARGS& p)
        : weight(reinterpret_cast<const PARAMETER*>(p.weight)), bias(reinterpret_cast<const PARAMETER*>(p.bias)) {}
    DEVICE void read(int e, COMPUTE* w, COMPUTE* b) const {
        fetch_vec(w, weight + column_of(e * VEC));
        if (CENTRED) fetch_vec(b, bias + column_of(e * VEC));
    }
};

// The same, loaded before: for a lane that has several rows.
struct FromRegisters {
    COMPUTE weight[HELD], bias[HELD];
    template <typename ARGS> DEVICE FromRegisters(const ARGS& p) {
        const FromMemory memory(p);
        fetch_row(weight, memory.weight, (int)p.width, true, (COMPUTE)0);
        if (CENTRED) fetch_row(bias, memory.bias, (int)p.width, true, (COMPUTE)0);
    }
    DEVICE void read(int e, COMPUTE* w, COMPUTE* b) const {
        #pragma unroll
        for (int i = 0; i < VEC; i++) {
            w[i] = weight[e * VEC + i];
            if (CENTRED) b[i] = bias[e * VEC + i];
        }
    }
};

// Writes the norm of row number `row`, which is at `x`, and its statistics, if they have a place. All lanes of a warp call this.
template <typename ARGS, typename PARAMETERS>
DEVICE void normalise(const ARGS& p, i64 row, bool live, const IN* x, const PARAMETERS& parameters) {
    const int width = (int)p.width;
    const COMPUTE share = (COMPUTE)p.share;
    COMPUTE v[HELD];
    fetch_row(v, x, width, live, (COMPUTE)0);
    const COMPUTE m = CENTRED ? product_of(share, row_sum(v)) : (COMPUTE)0;
    COMPUTE squares = (COMPUTE)0;
    #pragma unroll
    for (int i = 0; i < HELD; i++) {
        // Elements beyond the width stay 0.
        v[i] = sum_of(v[i], column_of(i) < width ? -m : (COMPUTE)0);
        squares = i == 0 ? product_of(v[i], v[i]) : product_plus(v[i], v[i], squares);
    }
    squares = warp_reduce<LANES>(squares, Add());
    COMPUTE r = (COMPUTE)1 / sqrt_(product_plus(share, squares, (COMPUTE)p.eps));
    // An empty row has no scale.
    if (width == 0) r = (COMPUTE)0;
    if (!live) return;
    if (row_lane() == 0) {
        if (p.inv) reinterpret_cast<COMPUTE*>(p.inv)[row] = r;
        if (CENTRED && p.mean) reinterpret_cast<COMPUTE*>(p.mean)[row] = m;
    }
    if (!p.y) return;
    IN* y = reinterpret_cast<IN*>(p.y) + row * width;
    #pragma unroll
    for (int e = 0; e < EACH; e++) {
        const int at = column_of(e * VEC);
        if (at < width) {
            COMPUTE w[VEC], b[VEC];
            parameters.read(e, w, b);
            #pragma unroll
            for (int i = 0; i < VEC; i++) {
                const COMPUTE n = product_of(v[e * VEC + i], r);
                w[i] = CENTRED ? product_plus(n, w[i], b[i]) : product_of(n, w[i]);
            }
            put_vec<false>(y + at, w);
        }
    }
}
