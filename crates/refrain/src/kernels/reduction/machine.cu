// The passes of a reduction. The first pass is REDUCE_ROWS or REDUCE_COLUMNS: along neighbours (inner is 1) or across
// them. What merges the states of the pieces is `merge_partials`: the second pass, REDUCE_PARTIALS, or the kernel that
// uses the results. The order of additions depends only on the extents, and on how rows lie. Constants of the first pass: COMPUTE, IN0,
// IN1 (dtypes), OPERANDS (1 or 2), VEC (neighbours that a thread processes at a time), ALIGNED (whether they can be loaded at once), and
// HEAD: if the operand is computed by text that is written for the kernel and follows it, how many neighbours at once.

#if defined(REDUCE_ROWS) || defined(REDUCE_COLUMNS)

#ifndef HEAD
#define HEAD 0
#endif

// Vectors that a thread loads before it adds the first one. Of columns, most threads have no more. What is computed takes more registers.
#define AHEAD (HEAD ? 2 : 4)
#define ROWS_AHEAD (HEAD ? 2 : VEC < 8 ? 8 : 4)
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

// What is computed may meet an index out of range, which is then in `bad`.
#if HEAD
typedef HeadedReduction Told;
DEVICE const Reduction& own(const Told& q) { return q.own; }
template <int N, typename E> DEVICE vec<IN0, N> element(const E& e, INDEX first, i64* bad);
template <typename E> DEVICE void report_all(const E& e, const i64* bad);
DEVICE Neighbours fetch_all(const Told& q, i64 at, i64, i64* bad) {
    Neighbours v;
    #pragma unroll
    for (int i = 0; i < VEC; i += HEAD) {
        const vec<IN0, HEAD> some = element<HEAD>(q.head, (INDEX)(at + i), bad);
        #pragma unroll
        for (int k = 0; k < HEAD; k++) v.x0.at[i + k] = some.at[k];
    }
    return v;
}
DEVICE COMPUTE fetch_one(const Told& q, i64 at, i64* bad) { return to<COMPUTE>(element<1>(q.head, (INDEX)at, bad).at[0]); }
DEVICE void report_found(const Told& q, const i64* bad) { report_all(q.head, bad); }
#else
typedef Reduction Told;
DEVICE const Reduction& own(const Told& q) { return q; }
// Those at `at0` of the first operand and at `at1` of the second one.
DEVICE Neighbours fetch_all(const Told& r, i64 at0, i64 at1, i64*) {
    Neighbours v;
    v.x0 = fetch<IN0>(r.x[0], at0);
#if OPERANDS > 1
    v.x1 = fetch<IN1>(r.x[1], at1);
#endif
    return v;
}
DEVICE COMPUTE fetch_one(const Told& r, i64 at, i64*) { return to<COMPUTE>(reinterpret_cast<const IN0*>(r.x[0])[at]); }
DEVICE void report_found(const Told&, const i64*) {}
#endif

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
KERNEL_THAT_WAITS(reduce_rows, Told, q, BOUNDS) {
    __shared__ State warps[8];
    const Reduction& r = own(q);
    i64 bad[2] = {};
    const int lanes = 1 << (int)r.shift, lane = threadIdx.x & (lanes - 1);
    i64 row = ((i64)blockIdx.x * 256 + threadIdx.x) >> (int)r.shift, piece = 0;
    if (r.pieces > 1) {
        // Then a block has one piece.
        row = blockIdx.x / (u32)r.pieces;
        piece = blockIdx.x - (u32)row * (u32)r.pieces;
    }
    bool live = row < r.outer;
    // Which of the total's rows it is.
    const i64 turn = !live || row < r.totals ? 0 : row / r.totals, total = live ? row - turn * r.totals : 0;
    take_turn();
    Local acc[VEC];
    #pragma unroll
    for (int v = 0; v < VEC; v++) acc[v] = first(r, total, first_place(r, total));
    if (live) {
        i64 start = piece * r.piece, end = start + r.piece < r.n ? start + r.piece : r.n;
        const i64 base0 = total * r.step[0] + turn * r.next[0], before = turn * r.n;
#if OPERANDS > 1
        const i64 base1 = total * r.step[1] + turn * r.next[1];
#else
        const i64 base1 = 0;
#endif
        i64 i = start + lane * VEC;
        const i64 step = lanes * VEC;
        while (i + VEC <= end) {
            Neighbours n[AHEAD];
            #pragma unroll
            for (int k = 0; k < AHEAD; k++) if (i + k * step + VEC <= end) n[k] = fetch_all(q, base0 + i + k * step, base1 + i + k * step, bad);
            #pragma unroll
            for (int k = 0; k < AHEAD; k++) {
                if (i + VEC <= end) {
                    add_all(acc, n[k], before + i, 1, row, 0, r);
                    i += step;
                }
            }
        }
        #pragma unroll
        for (int v = 0; v < VEC - 1; v++) {
            if (i + v < end) {
                COMPUTE x[2];
                x[0] = fetch_one(q, base0 + i + v, bad);
#if OPERANDS > 1
                x[1] = to<COMPUTE>(reinterpret_cast<const IN1*>(r.x[1])[base1 + i + v]);
#endif
                add(acc[v], x, before + i + v, row, r);
            }
        }
    }
    report_found(q, bad);
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
// Merges what the lanes of a warp have that process the same columns: W columns each, from the one at `first_column` on, into
// `to`. At each distance the lanes halve the columns between them, so that they exchange few states.
template <int W> DEVICE void merge_lanes(State* s, int first_column, int distance, int columns, State* to) {
    const int lane = threadIdx.x & 31;
    State* own = to + (lane & (columns - 1)) * VEC + first_column;
    if constexpr (W == 1) {
        const int others = distance < columns ? 0 : 2 * distance - columns;
        for (; distance >= columns; distance /= 2) s[0] = merge(s[0], exchange(s[0], distance));
        if ((lane & others) == 0) own[0] = s[0];
    } else if (distance < columns) {
        #pragma unroll
        for (int i = 0; i < W; i++) own[i] = s[i];
    } else {
        const bool upper = lane & distance;
        #pragma unroll
        for (int i = 0; i < W / 2; i++) {
            State kept = upper ? s[W / 2 + i] : s[i], given = upper ? s[i] : s[W / 2 + i];
            s[i] = merge(kept, exchange(given, distance));
        }
        merge_lanes<W / 2>(s, first_column + (upper ? W / 2 : 0), distance / 2, columns, to);
    }
}

// Loads rows from row i on, which lies at `at`, as far as they come before `end`.
DEVICE void fetch_rows(Neighbours* n, const Told& q, i64 i, i64 at, int step, i64 stride, i64 end, i64* bad) {
    #pragma unroll
    for (int k = 0; k < ROWS_AHEAD; k++) if (i + k * step < end) n[k] = fetch_all(q, at + k * stride, at + k * stride, bad);
}

// A piece of some columns for each block: neighbouring threads process neighbouring columns, the others further rows.
KERNEL_THAT_WAITS(reduce_columns, Told, q, BOUNDS) {
    __shared__ __align__(16) State warps[8][32 * VEC];
    const Reduction& r = own(q);
    i64 bad[2] = {};
    const int columns = 1 << (int)r.shift, tx = threadIdx.x & (columns - 1), ty = threadIdx.x >> (int)r.shift;
    const int step = 256 >> (int)r.shift;
    const u32 across = (u32)((r.inner + columns * VEC - 1) / VEC >> (int)r.shift), stripe = blockIdx.x / across;
    const u32 slab = r.pieces == 1 ? stripe : stripe / (u32)r.pieces, piece = stripe - slab * (u32)r.pieces;
    const i64 column = ((i64)(blockIdx.x - stripe * across) * columns + tx) * VEC;
    bool live = column < r.inner;
    const i64 result = slab * r.inner + column, base = slab * r.n * r.inner + column;
    const i64 start = piece * r.piece, end = start + r.piece < r.n ? start + r.piece : r.n;
    const i64 stride = step * r.inner;
    i64 i = live ? start + ty : end, at = base + i * r.inner;
    take_turn();
    Neighbours n[ROWS_AHEAD];
    // What each sum begins with is loaded behind the first rows.
    fetch_rows(n, q, i, at, step, stride, end, bad);
    Local acc[VEC];
    #pragma unroll
    for (int v = 0; v < VEC; v++) acc[v] = first(r, live ? result + v : v, live ? base + v : v);
    while (i < end) {
        #pragma unroll
        for (int k = 0; k < ROWS_AHEAD; k++) {
            if (i + k * step < end) add_all(acc, n[k], i + k * step, 0, result, 1, r);
        }
        i += ROWS_AHEAD * step;
        at += ROWS_AHEAD * stride;
        fetch_rows(n, q, i, at, step, stride, end, bad);
    }
    report_found(q, bad);
    State s[VEC];
    #pragma unroll
    for (int v = 0; v < VEC; v++) s[v] = state(acc[v]);
    merge_lanes<VEC>(s, 0, 16, columns, warps[threadIdx.x >> 5]);
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

// Merges the states of 1 << r.shift results, the first of which is `result`, and stores that of the i-th of them in `s` of
// thread i. Returns whether the thread has one. All threads of the block take part, MERGE_THREADS of them.
#define MERGE_THREADS 512
// States that a thread loads before it merges the first one.
#define PARTIALS_AHEAD 4
DEVICE bool merge_partials(const Reduction& r, i64 first_result, State& s) {
    __shared__ State merged[MERGE_THREADS];
    const int columns = 1 << (int)r.shift, column = threadIdx.x & (columns - 1), ty = threadIdx.x >> (int)r.shift;
    const int step = MERGE_THREADS >> (int)r.shift;
    const bool live = first_result + column < r.totals;
    s = state(first(r, 0, 0));
    if (live) {
        const State* p = reinterpret_cast<const State*>(r.partial) + first_result + column;
        const i64 count = r.count, totals = r.totals;
        for (i64 i = ty; i < count; i += PARTIALS_AHEAD * step) {
            State next[PARTIALS_AHEAD];
            #pragma unroll
            for (int k = 0; k < PARTIALS_AHEAD; k++) if (i + k * step < count) next[k] = p[(i + k * step) * totals];
            #pragma unroll
            for (int k = 0; k < PARTIALS_AHEAD; k++) if (i + k * step < count) s = merge(s, next[k]);
        }
    }
    for (int d = 16; d >= columns; d /= 2) s = merge(s, exchange(s, d));
    // Now a column has a state of each warp or, if a warp has no column twice, of each thread.
    const int row = columns < 32 ? threadIdx.x >> 5 : ty, rows = columns < 32 ? MERGE_THREADS / 32 : step;
    if ((threadIdx.x & 31) < columns) merged[row * columns + column] = s;
    __syncthreads();
    if (!live || threadIdx.x >= columns) return false;
    s = merged[column];
    #pragma unroll
    for (int i = 1; i < MERGE_THREADS / 32; i++) if (i < rows) s = merge(s, merged[i * columns + column]);
    return true;
}

#ifdef REDUCE_PARTIALS
KERNEL(reduce_partials, Reduction, r, __launch_bounds__(MERGE_THREADS)) {
    const i64 first_result = (i64)blockIdx.x << (int)r.shift;
    State s;
    if (merge_partials(r, first_result, s)) finish(r, first_result + threadIdx.x, s);
}
#endif
