// What the kernels of matrix products share: where their `Job` is, and what follows a product. C = A B, of m x n x k numbers,
// row-major without holes, one matrix of a batch after the other. Constants: IN (the dtype that A and B are multiplied
// in; what is wider is rounded to it), COMPUTE (what is summed in), A_TYPE, B_TYPE, C_TYPE, BIAS_TYPE, RESIDUAL_TYPE,
// SUMS_TYPE (dtypes in memory), ACTIVATION (one of those below), PARTIAL: a block sums a part of k only and writes it
// to the working memory, for `gemm_sum` to gather; TAIL, whether elementwise kernels follow (tail.cu); TAIL_WHOLE, whether
// groups of their elements can be loaded and stored at once.

enum { NONE, RELU, GELU, GELU_TANH, SILU };

constexpr int BATCH_RANK = 4;

#if !TAIL
namespace tail {
template <int N> struct Operands {};
template <int N, bool WHOLE> DEVICE Operands<N> fetch(const Job&, i64, int, int) { return {}; }
template <int N, bool WHOLE, typename T>
DEVICE void follow(const Job&, i64, int, const Operands<N>&, const vec<T, N>&, const vec<T, N>&) {}
}
#endif

// What is read besides a product, of W adjacent elements of a row of C.
template <int W> struct Beside {
    COMPUTE added[W];
    tail::Operands<W> tail;
};

// The part of C that a block computes.
struct Place { i64 batch; int split, tile_m, tile_n; };

DEVICE Place place(const Job& j) {
    u32 rest = blockIdx.x, tiles_n = (u32)j.tiles_n, tiles_m = (u32)j.tiles_m, splits = (u32)j.splits;
    Place p;
    p.tile_n = (int)(rest % tiles_n);
    rest /= tiles_n;
    p.tile_m = (int)(rest % tiles_m);
    rest /= tiles_m;
    p.split = (int)(rest % splits);
    p.batch = rest / splits;
    return p;
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

// Reads W adjacent elements of a row, of which `there` exist.
template <typename T, int W> DEVICE void read_row(const Job& j, COMPUTE* x, u64 address, i64 at, int there) {
    const T* from = reinterpret_cast<const T*>(address) + at;
    if (W > 1 && j.aligned && there >= W) {
        vec<T, W> v = load<W>(from);
        #pragma unroll
        for (int i = 0; i < W; i++) x[i] = to<COMPUTE>(v.at[i]);
        return;
    }
    #pragma unroll
    for (int i = 0; i < W; i++) x[i] = i < there ? to<COMPUTE>(from[i]) : (COMPUTE)0;
}

// Rounds adjacent elements to the dtype of C.
template <int W> DEVICE vec<C_TYPE, W> rounded(const COMPUTE* x) {
    vec<C_TYPE, W> v;
    #pragma unroll
    for (int i = 0; i < W; i++) v.at[i] = from<C_TYPE>(x[i]);
    return v;
}

// Writes to C, or to another array of its dtype.
template <int W> DEVICE void write_row(const Job& j, u64 address, i64 at, int there, const vec<C_TYPE, W>& v) {
    C_TYPE* to = reinterpret_cast<C_TYPE*>(address) + at;
    if (W > 1 && j.aligned && there >= W) {
        store<W>(to, v);
        return;
    }
    #pragma unroll
    for (int i = 0; i < W; i++) if (i < there) to[i] = v.at[i];
}

// Reads the bias of COUNT groups of W columns, at intervals of STEP columns; nothing if the sums are partial.
template <int COUNT, int W, int STEP> DEVICE void biases(const Job& j, int col, COMPUTE (*x)[W]) {
    if (PARTIAL || !j.bias) return;
    #pragma unroll
    for (int g = 0; g < COUNT; g++) {
        read_row<BIAS_TYPE, W>(j, x[g], j.bias, col + g * STEP, (int)j.n - (col + g * STEP));
    }
}

// Reads what belongs to groups of adjacent elements of a row: what is added to them, which is the residual or, without one,
// C; and the operands of the tail.
template <int COUNT, int W, int STEP>
DEVICE void read_beside(const Job& j, i64 at, int col, Beside<W>* beside) {
    if (PARTIAL) return;
    int there = (int)j.n - col;
    if (j.residual) {
        #pragma unroll
        for (int g = 0; g < COUNT; g++) {
            read_row<RESIDUAL_TYPE, W>(j, beside[g].added, j.residual, at + g * STEP, there - g * STEP);
        }
    } else if (j.add) {
        #pragma unroll
        for (int g = 0; g < COUNT; g++) read_row<C_TYPE, W>(j, beside[g].added, j.c, at + g * STEP, there - g * STEP);
    }
    #pragma unroll
    for (int g = 0; g < COUNT; g++) {
        int step = g * STEP;
        if (there > step) beside[g].tail = tail::fetch<W, TAIL_WHOLE>(j, at + step, col + step, there - step);
    }
}

// Writes groups of adjacent elements of a row of C, the first at `at`: activation(v + bias) + added. The tail follows. C is
// left out if only the tail reads it.
template <int COUNT, int W, int STEP>
DEVICE void complete(const Job& j, i64 at, int col, COMPUTE (*v)[W], const COMPUTE (*bias)[W], Beside<W>* beside) {
    int there = (int)j.n - col;
    bool adds = j.residual || j.add;
    #pragma unroll
    for (int g = 0; g < COUNT; g++) {
        i64 place = at + g * STEP;
        int rest = there - g * STEP;
        if (rest <= 0) continue;
        if (j.bias) {
            #pragma unroll
            for (int i = 0; i < W; i++) v[g][i] += bias[g][i];
        }
        vec<C_TYPE, W> kept = rounded<W>(v[g]);
        if (j.kept) write_row<W>(j, j.kept, place, rest, kept);
        #pragma unroll
        for (int i = 0; i < W; i++) v[g][i] = activate(v[g][i]);
        if (adds) {
            #pragma unroll
            for (int i = 0; i < W; i++) v[g][i] += beside[g].added[i];
        }
        if (j.residual && j.add) {
            read_row<C_TYPE, W>(j, beside[g].added, j.c, place, rest);
            #pragma unroll
            for (int i = 0; i < W; i++) v[g][i] += beside[g].added[i];
        }
        vec<C_TYPE, W> c = rounded<W>(v[g]);
        if (!TAIL || j.c) write_row<W>(j, j.c, place, rest, c);
        tail::follow<W, TAIL_WHOLE>(j, place, rest, beside[g].tail, c, kept);
    }
}

DEVICE i64 place_of(const Job& j, const Place& p, int row, int col) { return (p.batch * j.m + row) * j.n + col; }

// Writes groups of adjacent elements of a row of the product, at intervals of STEP.
template <int COUNT, int W, int STEP>
DEVICE void finish(
    const Job& j, const Place& p, int row, int col, COMPUTE (*v)[W], const COMPUTE (*bias)[W], Beside<W>* beside
) {
    i64 at = place_of(j, p, row, col);
    if (!PARTIAL) {
        complete<COUNT, W, STEP>(j, at, col, v, bias, beside);
        return;
    }
    COMPUTE* partial = reinterpret_cast<COMPUTE*>(j.partial) + p.split * (j.batches * j.m * j.n) + at;
    #pragma unroll
    for (int g = 0; g < COUNT; g++) {
        int there = (int)j.n - col - g * STEP;
        if (W > 1 && j.aligned && there >= W) {
            vec<COMPUTE, W> x;
            #pragma unroll
            for (int i = 0; i < W; i++) x.at[i] = v[g][i];
            store<W>(partial + g * STEP, x);
        } else {
            #pragma unroll
            for (int i = 0; i < W; i++) if (i < there) partial[g * STEP + i] = v[g][i];
        }
    }
}

template <int COUNT, int W, int STEP>
DEVICE void finish(const Job& j, const Place& p, int row, int col, COMPUTE (*v)[W], const COMPUTE (*bias)[W]) {
    if (row >= j.m) return;
    Beside<W> beside[COUNT];
    read_beside<COUNT, W, STEP>(j, place_of(j, p, row, col), col, beside);
    finish<COUNT, W, STEP>(j, p, row, col, v, bias, beside);
}

// Writes one element of the product.
DEVICE void finish_one(const Job& j, const Place& p, int row, int col, COMPUTE x) {
    COMPUTE v[1][1] = {{x}}, bias[1][1];
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
