// The passes of a reduction. The first pass is REDUCE_ROWS or REDUCE_COLUMNS: along neighbours (inner is 1) or across
// them. The second pass is REDUCE_PARTIALS, over the states of the pieces. The order of additions depends only on the
// extents. Constants of the first pass: COMPUTE, IN0, IN1 (dtypes), OPERANDS (1 or 2), VEC (neighbours that a thread
// processes at a time), ALIGNED (whether they can be loaded at once).

#if defined(REDUCE_ROWS) || defined(REDUCE_COLUMNS)

// Vectors that a thread loads before it adds the first one.
#define AHEAD 4
// For a reducer that needs few registers: how many it may use. Without a number, the assembler saves registers for
// more blocks, and loads a vector only after the one before it was added.
#ifndef BOUNDS
#define BOUNDS
#endif

template <typename T> DEVICE vec<T, VEC> fetch(u64 base, i64 at) {
    const T* p = reinterpret_cast<const T*>(base) + at;
    if (ALIGNED) return load<VEC>(p);
    vec<T, VEC> v;
    #pragma unroll
    for (int i = 0; i < VEC; i++) v.at[i] = p[i];
    return v;
}

// Neighbours of all operands.
struct Neighbours {
    vec<IN0, VEC> x0;
#if OPERANDS > 1
    vec<IN1, VEC> x1;
#endif
};

DEVICE Neighbours fetch_all(const Reduction& r, i64 at) {
    Neighbours v;
    v.x0 = fetch<IN0>(r.x[0], at);
#if OPERANDS > 1
    v.x1 = fetch<IN1>(r.x[1], at);
#endif
    return v;
}

// Adds each neighbour to its own `acc`. Positions and results advance by the steps.
DEVICE void add_all(Local* acc, const Neighbours& n, i64 position, int step, i64 result, int result_step,
                    const Reduction& r) {
    #pragma unroll
    for (int v = 0; v < VEC; v++) {
        COMPUTE x[2];
        x[0] = to<COMPUTE>(n.x0.at[v]);
#if OPERANDS > 1
        x[1] = to<COMPUTE>(n.x1.at[v]);
#endif
        add(acc[v], x, position + v * step, result + v * result_step, r);
    }
}

DEVICE void emit(const Reduction& r, i64 result, i64 piece, const State& s) {
    if (r.direct) finish(r, result, s);
    else reinterpret_cast<State*>(r.partial)[piece * r.outer * r.inner + result] = s;
}

#endif

#ifdef REDUCE_ROWS
// A piece of a row for each group of lanes: up to a warp, or the whole block.
KERNEL(reduce_rows, Reduction, r, BOUNDS) {
    __shared__ State warps[8];
    const int lanes = 1 << (int)r.shift, lane = threadIdx.x & (lanes - 1);
    i64 item = ((i64)blockIdx.x * 256 + threadIdx.x) >> (int)r.shift;
    i64 row = r.pieces == 1 ? item : item / r.pieces, piece = item - row * r.pieces;
    bool live = row < r.outer;
    Local acc[VEC];
    #pragma unroll
    for (int v = 0; v < VEC; v++) acc[v] = first();
    if (live) {
        i64 start = piece * r.piece, end = start + r.piece < r.n ? start + r.piece : r.n;
        i64 base = row * r.n, i = start + lane * VEC;
        const i64 step = lanes * VEC;
        for (; i + (AHEAD - 1) * step + VEC <= end; i += AHEAD * step) {
            Neighbours n[AHEAD];
            #pragma unroll
            for (int k = 0; k < AHEAD; k++) n[k] = fetch_all(r, base + i + k * step);
            #pragma unroll
            for (int k = 0; k < AHEAD; k++) add_all(acc, n[k], i + k * step, 1, row, 0, r);
        }
        for (; i + VEC <= end; i += step) add_all(acc, fetch_all(r, base + i), i, 1, row, 0, r);
        #pragma unroll
        for (int v = 0; v < VEC - 1; v++) {
            if (i + v < end) {
                COMPUTE x[2];
                x[0] = to<COMPUTE>(reinterpret_cast<const IN0*>(r.x[0])[base + i + v]);
#if OPERANDS > 1
                x[1] = to<COMPUTE>(reinterpret_cast<const IN1*>(r.x[1])[base + i + v]);
#endif
                add(acc[v], x, i + v, row, r);
            }
        }
    }
    State s = state(acc[0]);
    #pragma unroll
    for (int v = 1; v < VEC; v++) s = merge(s, state(acc[v]));
    for (int d = (lanes < 32 ? lanes : 32) / 2; d > 0; d /= 2) s = merge(s, exchange(s, d));
    if (lanes > 32) {
        if ((threadIdx.x & 31) == 0) warps[threadIdx.x >> 5] = s;
        __syncthreads();
        if (threadIdx.x == 0) {
            for (int w = 1; w < 8; w++) s = merge(s, warps[w]);
        }
    }
    if (live && lane == 0) emit(r, row, piece, s);
}
#endif

#ifdef REDUCE_COLUMNS
// A piece of some columns for each block: neighbouring threads process neighbouring columns, the others further rows.
KERNEL(reduce_columns, Reduction, r, BOUNDS) {
    __shared__ __align__(16) State warps[8][32 * VEC];
    const int columns = 1 << (int)r.shift, tx = threadIdx.x & (columns - 1), ty = threadIdx.x >> (int)r.shift;
    const int step = 256 >> (int)r.shift;
    i64 across = (r.inner + columns * VEC - 1) / (columns * VEC);
    i64 slab = blockIdx.x / across, column = ((blockIdx.x - slab * across) * columns + tx) * VEC;
    i64 piece = r.pieces == 1 ? 0 : slab % r.pieces;
    if (r.pieces != 1) slab /= r.pieces;
    bool live = column < r.inner;
    Local acc[VEC];
    #pragma unroll
    for (int v = 0; v < VEC; v++) acc[v] = first();
    i64 result = slab * r.inner + column;
    if (live) {
        i64 start = piece * r.piece, end = start + r.piece < r.n ? start + r.piece : r.n;
        i64 at = (slab * r.n + start + ty) * r.inner + column;
        const i64 stride = step * r.inner;
        i64 i = start + ty;
        for (; i + (AHEAD - 1) * step < end; i += AHEAD * step, at += AHEAD * stride) {
            Neighbours n[AHEAD];
            #pragma unroll
            for (int k = 0; k < AHEAD; k++) n[k] = fetch_all(r, at + k * stride);
            #pragma unroll
            for (int k = 0; k < AHEAD; k++) add_all(acc, n[k], i + k * step, 0, result, 1, r);
        }
        for (; i < end; i += step, at += stride) add_all(acc, fetch_all(r, at), i, 0, result, 1, r);
    }
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    #pragma unroll
    for (int v = 0; v < VEC; v++) {
        State s = state(acc[v]);
        for (int d = 16; d >= columns; d /= 2) s = merge(s, exchange(s, d));
        if (lane < columns) warps[warp][lane * VEC + v] = s;
    }
    __syncthreads();
    // VEC divides inner, so a column exists if its first neighbour does.
    const int e = threadIdx.x;
    const i64 first_column = column - tx * VEC;
    if (e < columns * VEC && first_column + e < r.inner) {
        State s = warps[0][e];
        #pragma unroll
        for (int w = 1; w < 8; w++) s = merge(s, warps[w][e]);
        emit(r, slab * r.inner + first_column + e, piece, s);
    }
}
#endif

#ifdef REDUCE_PARTIALS
KERNEL(reduce_partials, Reduction, r) {
    __shared__ State warps[16][32];
    const int columns = 1 << (int)r.shift, tx = threadIdx.x & (columns - 1), ty = threadIdx.x >> (int)r.shift;
    const int step = 512 >> (int)r.shift;
    i64 result = (i64)blockIdx.x * columns + tx;
    bool live = result < r.totals;
    State s = state(first());
    if (live) {
        const State* p = reinterpret_cast<const State*>(r.partial) + result;
        #pragma unroll 4
        for (i64 i = ty; i < r.count; i += step) s = merge(s, p[i * r.totals]);
    }
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    for (int d = 16; d >= columns; d /= 2) s = merge(s, exchange(s, d));
    if (lane < columns) warps[warp][lane] = s;
    __syncthreads();
    if (live && threadIdx.x < columns) {
        s = warps[0][lane];
        for (int w = 1; w < 16; w++) s = merge(s, warps[w][lane]);
        finish(r, result, s);
    }
}
#endif
