// What the kernels of matrix products share: where their `Job` is, and what follows a product. C = A B, of m x n x k numbers,
// row-major without holes, one matrix of a batch after the other. Constants: IN (the dtype that A and B are multiplied
// in; what is wider is rounded to it), COMPUTE (what is summed in), A_TYPE, B_TYPE, C_TYPE, BIAS_TYPE, RESIDUAL_TYPE,
// SUMS_TYPE (dtypes in memory), ACTIVATION (one of those below), PARTIAL: a block sums a part of k only and writes it
// to the working memory, for `gemm_sum` to gather; TAIL, whether elementwise kernels follow (tail.cu); HAS_BIAS,
// HAS_RESIDUAL, ADDS, whether the product is added to C; KEEPS, whether it is also kept as it was before the activation;
// STORES, whether C is written, or read by the tail alone; ALIGNED, whether four elements of a row can be loaded and stored at
// once, so that a row has a multiple of four; EVEN, whether it has a multiple of what a block computes of it; NORM, whether a norm
// of its rows follows (norm.cu, in a namespace of its own), and PASSES, whether another product of them follows. Then a block has
// whole rows: they pass through shared memory as numbers of ROW_TYPE, with ROW_PITCH numbers from one row to the next.

enum { NONE, RELU, GELU, GELU_TANH, SILU };

constexpr int BATCH_RANK = 4;

#if !TAIL
namespace tail {
struct Begun {};
DEVICE Begun begin(const Job&) { return {}; }
template <int N> struct Operands {};
template <int N, bool WHOLE> DEVICE Operands<N> fetch(const Job&, i64, int, int) { return {}; }
template <int N, bool WHOLE, typename T>
DEVICE vec<T, N> follow(const Job&, const Begun&, i64, int, int, const Operands<N>&, const vec<T, N>& c, const vec<T, N>&) { return c; }
}
#endif

// The rows of a block's tile in shared memory, for what follows.
#if NORM || PASSES
struct Rows {
    ROW_TYPE* tile;
    int first;
    template <int W> DEVICE void hold(int row, int col, const vec<ROW_TYPE, W>& v) const {
        store<W>(tile + (row - first) * ROW_PITCH + col, v);
    }
};
#else
struct Rows {
    template <int W, typename T> DEVICE void hold(int, int, const vec<T, W>&) const {}
};
#endif

// What is read besides a product, of W adjacent elements of a row of C, as it lies in memory: so it takes the fewest registers until it
// is needed.
#if HAS_RESIDUAL
typedef RESIDUAL_TYPE Added;
#else
typedef C_TYPE Added;
#endif
template <int W> struct Beside {
    vec<Added, W> added;
    tail::Operands<W> tail;
};

// The part of C that a block computes; what its tail begins with, once the block has taken its turn; and its rows for what follows.
struct Place { i64 batch; int split, tile_m, tile_n; tail::Begun tail; Rows rows; };

DEVICE Place place(const Job& j) {
    u32 rest = blockIdx.x, tiles_n = (u32)j.tiles_n, tiles_m = (u32)j.tiles_m, splits = (u32)j.splits;
    Place p = {};
    p.tile_n = (int)(rest % tiles_n);
    rest /= tiles_n;
    p.tile_m = (int)rest;
    if (PARTIAL || j.batches > 1) {
        p.tile_m = (int)(rest % tiles_m);
        rest /= tiles_m;
        p.split = PARTIAL ? (int)(rest % splits) : 0;
        p.batch = PARTIAL ? rest / splits : rest;
    }
    return p;
}

// Takes the block's turn, and loads what the tail begins with. Before, nothing may be read.
DEVICE void take_turn(const Job& j, Place& p) {
    ::take_turn();
    p.tail = tail::begin(j);
}

// The start of the operands of one matrix of the batch.
DEVICE void begin(const Job& j, i64 batch, const A_TYPE*& a, const B_TYPE*& b) {
    i64 at_a = 0, at_b = 0;
    if (j.batches > 1) {
        u32 rest = (u32)batch;
        #pragma unroll
        for (int d = BATCH_RANK - 1; d >= 0; d--) {
            u32 size = (u32)j.sizes[d], q = rest / size, r = rest - q * size;
            at_a += (i64)r * j.a_batch[d];
            at_b += (i64)r * j.b_batch[d];
            rest = q;
        }
    }
    a = reinterpret_cast<const A_TYPE*>(j.a) + at_a;
    b = reinterpret_cast<const B_TYPE*>(j.b) + at_b;
}

// A number of A or B, rounded to the dtype of the factors.
template <typename T> DEVICE COMPUTE factor(T x) { return to<COMPUTE>(from<IN>(to<COMPUTE>(x))); }
DEVICE COMPUTE factor(IN x) { return to<COMPUTE>(x); }

DEVICE COMPUTE activate(COMPUTE x) {
    switch (ACTIVATION) {
    case RELU: return relu_(x);
    case GELU: return gelu_(x);
    case GELU_TANH: return gelu_tanh_(x);
    case SILU: return silu_(x);
    default: return x;
    }
}

// How many of a row's elements exist from a column on, of which W are asked for.
template <int W> DEVICE int there_from(const Job& j, int col) { return EVEN ? W : (int)j.n - col; }

// Reads W adjacent elements of a row, of which `there` exist: all or none, if they are loaded at once.
template <typename T, int W> DEVICE vec<T, W> read_row(u64 address, i64 at, int there) {
    const T* from = reinterpret_cast<const T*>(address) + at;
    vec<T, W> v = {};
    if constexpr (W > 1 && ALIGNED) {
        if (there > 0) v = load<W>(from);
    } else {
        #pragma unroll
        for (int i = 0; i < W; i++) if (i < there) v.at[i] = from[i];
    }
    return v;
}

// Adds elements as they lie in memory.
template <typename T, int W> DEVICE void add_row(COMPUTE* to, const vec<T, W>& v) {
    vec<COMPUTE, W> x = to_all<COMPUTE>(v);
    #pragma unroll
    for (int i = 0; i < W; i++) to[i] = sum_of(to[i], x.at[i]);
}

// Writes W adjacent elements of a row, of which `there` exist.
template <typename T, int W> DEVICE void write_row(u64 address, i64 at, int there, const vec<T, W>& v) {
    T* to = reinterpret_cast<T*>(address) + at;
    if constexpr (W > 1 && ALIGNED) {
        if (there > 0) store<W>(to, v);
    } else {
        #pragma unroll
        for (int i = 0; i < W; i++) if (i < there) to[i] = v.at[i];
    }
}

// Reads the bias of COUNT groups of W columns, at intervals of STEP columns; nothing if the sums are partial.
template <int COUNT, int W, int STEP> DEVICE void biases(const Job& j, int col, vec<BIAS_TYPE, W>* x) {
    if (PARTIAL || !HAS_BIAS) return;
    #pragma unroll
    for (int g = 0; g < COUNT; g++) x[g] = read_row<BIAS_TYPE, W>(j.bias, col + g * STEP, there_from<W>(j, col + g * STEP));
}

// Reads what belongs to groups of adjacent elements of a row: what is added to them, which is the residual or, without one,
// C; and the operands of the tail.
template <int COUNT, int W, int STEP>
DEVICE void read_beside(const Job& j, i64 at, int col, Beside<W>* beside) {
    if (PARTIAL) return;
    #pragma unroll
    for (int g = 0; g < COUNT; g++) {
        int step = g * STEP, there = there_from<W>(j, col + step);
        if (HAS_RESIDUAL || ADDS) beside[g].added = read_row<Added, W>(HAS_RESIDUAL ? j.residual : j.c, at + step, there);
        beside[g].tail = tail::fetch<W, ALIGNED>(j, at + step, col + step, there);
    }
}

// Writes groups of adjacent elements of row `row` of C, the first at `at`: activation(v + bias) + added. The tail follows. Sums
// are rounded by themselves: the compiler must not contract them with a product of the activation, because what it would
// contract depends on the text around it.
template <int COUNT, int W, int STEP>
DEVICE void complete(
    const Job& j, const Place& p, i64 at, int row, int col, COMPUTE (*v)[W], const vec<BIAS_TYPE, W>* bias, const Beside<W>* beside
) {
    #pragma unroll
    for (int g = 0; g < COUNT; g++) {
        int step = g * STEP, there = there_from<W>(j, col + step);
        if (there <= 0) continue;
        if (HAS_BIAS) add_row(v[g], bias[g]);
        vec<C_TYPE, W> kept = round_all<C_TYPE, W>(v[g]);
        if (KEEPS) write_row<C_TYPE, W>(j.kept, at + step, there, kept);
        #pragma unroll
        for (int i = 0; i < W; i++) v[g][i] = activate(v[g][i]);
        if (HAS_RESIDUAL || ADDS) add_row(v[g], beside[g].added);
        if (HAS_RESIDUAL && ADDS) add_row(v[g], read_row<C_TYPE, W>(j.c, at + step, there));
        vec<C_TYPE, W> c = round_all<C_TYPE, W>(v[g]);
        if (STORES) write_row<C_TYPE, W>(j.c, at + step, there, c);
        p.rows.hold<W>(row, col + step, tail::follow<W, ALIGNED>(j, p.tail, at, step, there, beside[g].tail, c, kept));
    }
}

DEVICE i64 place_of(const Job& j, const Place& p, int row, int col) { return (p.batch * j.m + row) * j.n + col; }

// Writes groups of adjacent elements of a row of the product, at intervals of STEP.
template <int COUNT, int W, int STEP>
DEVICE void finish(
    const Job& j, const Place& p, int row, int col, COMPUTE (*v)[W], const vec<BIAS_TYPE, W>* bias, const Beside<W>* beside
) {
    i64 at = place_of(j, p, row, col);
    if (!PARTIAL) {
        complete<COUNT, W, STEP>(j, p, at, row, col, v, bias, beside);
        return;
    }
    i64 start = p.split * (j.batches * j.m * j.n);
    #pragma unroll
    for (int g = 0; g < COUNT; g++) {
        vec<COMPUTE, W> x;
        #pragma unroll
        for (int i = 0; i < W; i++) x.at[i] = v[g][i];
        write_row<COMPUTE, W>(j.partial, start + at + g * STEP, there_from<W>(j, col + g * STEP), x);
    }
}

template <int COUNT, int W, int STEP>
DEVICE void finish(const Job& j, const Place& p, int row, int col, COMPUTE (*v)[W], const vec<BIAS_TYPE, W>* bias) {
    if (row >= j.m) return;
    Beside<W> beside[COUNT];
    read_beside<COUNT, W, STEP>(j, place_of(j, p, row, col), col, beside);
    finish<COUNT, W, STEP>(j, p, row, col, v, bias, beside);
}

// Writes one element of the product.
DEVICE void finish_one(const Job& j, const Place& p, int row, int col, COMPUTE x) {
    COMPUTE v[1][1] = {{x}};
    vec<BIAS_TYPE, 1> bias[1];
    if (col >= j.n) return;
    biases<1, 1, 1>(j, col, bias);
    finish<1, 1, 1>(j, p, row, col, v, bias);
}

// Writes the sum of a row of A. Only products without a batch have such sums.
DEVICE void finish_sum(const Job& j, const Place& p, int row, COMPUTE v) {
    if (row >= j.m) return;
    if (PARTIAL) {
        reinterpret_cast<COMPUTE*>(j.partial)[j.splits * (j.m * j.n) + p.split * j.m + row] = v;
        return;
    }
    SUMS_TYPE* to = reinterpret_cast<SUMS_TYPE*>(j.sums) + row;
    *to = from<SUMS_TYPE>(j.add_sums ? v + ::to<COMPUTE>(*to) : v);
}
