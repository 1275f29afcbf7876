// What the kernels of matrix products share: the job and what follows a product. C = A B, of m x n x k numbers,
// row-major without holes, one matrix of a batch after the other. Constants: IN (the operands' dtype), COMPUTE
// (what is summed in), ACTIVATION (one of those below), PARTIAL: a block sums a part of k only and writes it to
// the working memory, for `gemm_sum` to gather.

enum { NONE, RELU, GELU, GELU_TANH, SILU };

constexpr int BATCH_RANK = 4;

struct Job {
    // Addresses; 0 of what there is not. `sums` gets the sums of A's rows.
    u64 a, b, c, bias, residual, kept, sums, partial;
    i64 m, n, k;
    // Steps, in elements.
    i64 a_row, a_col, b_row, b_col;
    i64 tiles_m, tiles_n, batches, splits;
    // How much of k a split sums.
    i64 depth;
    i64 sizes[BATCH_RANK], a_batch[BATCH_RANK], b_batch[BATCH_RANK];
    // Whether C and the sums are added to, and whether four elements of a row of C can be loaded and stored at once.
    i64 add, add_sums, aligned;
};

// What a block works on.
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

// Where the operands of a matrix of the batch begin.
DEVICE void begin(const Job& j, i64 batch, const IN*& a, const IN*& b) {
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
    a = reinterpret_cast<const IN*>(j.a) + at_a;
    b = reinterpret_cast<const IN*>(j.b) + at_b;
}

DEVICE COMPUTE activate(COMPUTE x) {
    switch (ACTIVATION) {
    case RELU: return relu_(x);
    case GELU: return gelu_(x);
    case GELU_TANH: return gelu_tanh_(x);
    case SILU: return silu_(x);
    default: return x;
    }
}

DEVICE const IN* of(u64 address, i64 at) { return reinterpret_cast<const IN*>(address) + at; }

// Writes W neighbours of a row of C, of which `there` exist: activation(v + bias) + residual.
template <int W> DEVICE void complete(const Job& j, i64 at, int col, int there, COMPUTE* v) {
    IN* c = reinterpret_cast<IN*>(j.c) + at;
    if (W > 1 && j.aligned && there >= W) {
        vec<IN, W> x;
        if (j.bias) {
            x = load<W>(of(j.bias, col));
            #pragma unroll
            for (int i = 0; i < W; i++) v[i] += to<COMPUTE>(x.at[i]);
        }
        if (j.kept) {
            #pragma unroll
            for (int i = 0; i < W; i++) x.at[i] = from<IN>(v[i]);
            store<W>(reinterpret_cast<IN*>(j.kept) + at, x);
        }
        #pragma unroll
        for (int i = 0; i < W; i++) v[i] = activate(v[i]);
        if (j.residual) {
            x = load<W>(of(j.residual, at));
            #pragma unroll
            for (int i = 0; i < W; i++) v[i] += to<COMPUTE>(x.at[i]);
        }
        if (j.add) {
            x = load<W>(c);
            #pragma unroll
            for (int i = 0; i < W; i++) v[i] += to<COMPUTE>(x.at[i]);
        }
        #pragma unroll
        for (int i = 0; i < W; i++) x.at[i] = from<IN>(v[i]);
        store<W>(c, x);
        return;
    }
    #pragma unroll
    for (int i = 0; i < W; i++) {
        if (i < there) {
            COMPUTE x = v[i];
            if (j.bias) x += to<COMPUTE>(*of(j.bias, col + i));
            if (j.kept) reinterpret_cast<IN*>(j.kept)[at + i] = from<IN>(x);
            x = activate(x);
            if (j.residual) x += to<COMPUTE>(*of(j.residual, at + i));
            if (j.add) x += to<COMPUTE>(c[i]);
            c[i] = from<IN>(x);
        }
    }
}

// Takes W neighbours of a row of the product.
template <int W> DEVICE void finish(const Job& j, const Place& p, int row, int col, COMPUTE* v) {
    if (row >= j.m || col >= j.n) return;
    int there = (int)j.n - col;
    i64 at = (p.batch * j.m + row) * j.n + col;
    if (!PARTIAL) {
        complete<W>(j, at, col, there, v);
        return;
    }
    COMPUTE* to = reinterpret_cast<COMPUTE*>(j.partial) + p.split * (j.batches * j.m * j.n) + at;
    if (W > 1 && j.aligned && there >= W) {
        vec<COMPUTE, W> x;
        #pragma unroll
        for (int i = 0; i < W; i++) x.at[i] = v[i];
        store<W>(to, x);
        return;
    }
    #pragma unroll
    for (int i = 0; i < W; i++) if (i < there) to[i] = v[i];
}

// Takes the sum of a row of A. Only products that are no batch have such sums.
DEVICE void finish_sum(const Job& j, const Place& p, int row, COMPUTE v) {
    if (row >= j.m) return;
    if (PARTIAL) {
        reinterpret_cast<COMPUTE*>(j.partial)[j.splits * (j.m * j.n) + p.split * j.m + row] = v;
        return;
    }
    IN* to = reinterpret_cast<IN*>(j.sums) + row;
    *to = from<IN>(j.add_sums ? v + ::to<COMPUTE>(*to) : v);
}
