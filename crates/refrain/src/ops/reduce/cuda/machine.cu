// The passes of a reduction. REDUCE_ROWS and REDUCE_COLUMNS are the first, along neighbours (inner is 1) and across
// them; REDUCE_PARTIALS is the second, over what pieces came to. What is added in which order follows from the
// extents alone. Constants of the first pass: COMPUTE, IN0, IN1 (dtypes), OPERANDS (1 or 2), VEC (neighbours that a
// thread takes at once), ALIGNED (whether they can be loaded at once).

#if defined(REDUCE_ROWS) || defined(REDUCE_COLUMNS)

template <int K, typename T> DEVICE void fetch(COMPUTE (*x)[2], const Reduction& r, i64 at) {
    const T* p = reinterpret_cast<const T*>(r.x[K]) + at;
    if (ALIGNED) {
        vec<T, VEC> v = load<VEC>(p);
        #pragma unroll
        for (int i = 0; i < VEC; i++) x[i][K] = to<COMPUTE>(v.at[i]);
    } else {
        #pragma unroll
        for (int i = 0; i < VEC; i++) x[i][K] = to<COMPUTE>(p[i]);
    }
}

DEVICE void fetch_all(COMPUTE (*x)[2], const Reduction& r, i64 at) {
    fetch<0, IN0>(x, r, at);
#if OPERANDS > 1
    fetch<1, IN1>(x, r, at);
#endif
}

DEVICE void emit(const Reduction& r, i64 result, i64 piece, const State& s) {
    if (r.direct) finish(r, result, s);
    else reinterpret_cast<State*>(r.partial)[piece * r.outer * r.inner + result] = s;
}

#endif

#ifdef REDUCE_ROWS
// A piece of a row for each group of lanes: up to a warp, or the whole block.
KERNEL reduce_rows(const __grid_constant__ Reduction r) {
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
        #pragma unroll 4
        for (; i + VEC <= end; i += lanes * VEC) {
            COMPUTE x[VEC][2];
            fetch_all(x, r, base + i);
            #pragma unroll
            for (int v = 0; v < VEC; v++) add(acc[v], x[v], i + v, row, r);
        }
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
// A piece of some columns for each block: threads side by side take neighbouring columns, the rest of them rows.
KERNEL reduce_columns(const __grid_constant__ Reduction r) {
    __shared__ State warps[8][32][VEC];
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
        #pragma unroll 4
        for (i64 i = start + ty; i < end; i += step, at += step * r.inner) {
            COMPUTE x[VEC][2];
            fetch_all(x, r, at);
            #pragma unroll
            for (int v = 0; v < VEC; v++) add(acc[v], x[v], i, result + v, r);
        }
    }
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    #pragma unroll
    for (int v = 0; v < VEC; v++) {
        State s = state(acc[v]);
        for (int d = 16; d >= columns; d /= 2) s = merge(s, exchange(s, d));
        if (lane < columns) warps[warp][lane][v] = s;
    }
    __syncthreads();
    if (live && threadIdx.x < columns) {
        #pragma unroll
        for (int v = 0; v < VEC; v++) {
            State s = warps[0][lane][v];
            for (int w = 1; w < 8; w++) s = merge(s, warps[w][lane][v]);
            emit(r, result + v, piece, s);
        }
    }
}
#endif

#ifdef REDUCE_PARTIALS
KERNEL reduce_partials(const __grid_constant__ Reduction r) {
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
