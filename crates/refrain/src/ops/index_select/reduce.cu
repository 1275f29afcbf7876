// Reduces slices at indexed positions: y[o, i, :] is the sum (or largest, or smallest) of x[o, e, :] over the entries e of the index that
// equal i, in their order, and of base if BASE. The slice of an index out of range is ignored; without SORTED it is reported here. A
// block processes ROWS i, far apart because neighbours are often named equally often, and some columns, for all o in turn. Constants:
// KIND, SUM, AMAX or AMIN; ID, dtype of the index; ELEMENT; VEC, the elements of a slice that a thread loads at once; BASE; BASE_JOINS,
// whether base counts where there are entries; IN_PLACE, whether base is y; ROWS; LANES, threads of each; SORTED, whether the entries are
// ordered (if not, each block searches the index, which then has at most MOST entries); HEAD, whether the slices are computed by text
// that is written for the kernel and follows it.

#define SUM 0
#define AMAX 1
#define AMIN 2

#define THREADS 256
#define WARPS (THREADS / 32)
#define MOST 4096
// With more entries, each warp reduces a part.
#define LONG 64

typedef arithmetic<ELEMENT>::type C;
#if SORTED
typedef u32 entry;
#else
typedef unsigned short entry;
#endif

// What the reduction of no slices is, and that of one more.
DEVICE C nothing() { return KIND == SUM ? (C)0 : KIND == AMAX ? limits<C>::lowest() : limits<C>::highest(); }
DEVICE C joined(C all, C next) {
    if (KIND == SUM) return all + next;
    const bool is_more = KIND == AMAX ? next > all : next < all;
    return is_more || is_nan(next) ? next : all;
}
// The sum of a zero and +0 is +0, so that an extreme does not depend on the order.
DEVICE C reduced(C all) { return KIND == SUM ? all : all + (C)0; }

// Collects the entries of an index that equal i, in order, into `list`. Returns how many. The first block also checks
// all entries.
DEVICE u32 find(const ID* index, u32 count, i64 i, i64 size, const Reporter& faults, entry* list) {
    __shared__ u32 found[WARPS];
    const u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const u32 part = (count + THREADS - 1) / THREADS * 32, first = warp * part;
    u32 mine = 0;
    for (u32 k = 0; k < part; k += 32) {
        u32 e = first + k + lane;
        i64 named = e < count ? index[e] : -1;
        mine += __popc(__ballot_sync(FULL, named == i));
        if (blockIdx.x + blockIdx.y == 0 && e < count && (u64)named >= (u64)size) report(faults, named, size);
    }
    if (lane == 0) found[warp] = mine;
    __syncthreads();
    u32 at = 0, all = 0;
    #pragma unroll
    for (int w = 0; w < WARPS; w++) {
        if (w < warp) at += found[w];
        all += found[w];
    }
    if (mine > 0) {
        for (u32 k = 0; k < part; k += 32) {
            u32 e = first + k + lane;
            bool hit = e < count && index[e] == i;
            u32 hits = __ballot_sync(FULL, hit);
            if (hit) list[at + __popc(hits & ((1u << lane) - 1))] = (entry)e;
            at += __popc(hits);
        }
    }
    __syncthreads();
    return all;
}

// Elements of an entry of the source from column j on. What is computed may meet an index out of range, which is then in `bad`.
#if HEAD
typedef HeadedArgs Args;
DEVICE const IndexReduceArgs& own(const Args& q) { return q.own; }
template <int N, typename E> DEVICE vec<ELEMENT, N> element(const E& e, INDEX first, i64* bad);
template <typename E> DEVICE void report_all(const E& e, const i64* bad);
template <int N> DEVICE vec<ELEMENT, N> source(const Args& q, i64 o, i64 entry, i64 j, i64* bad) {
    return element<N>(q.head, (INDEX)((o * q.own.count + entry) * q.own.width + j), bad);
}
DEVICE void finish(const Args& q, const i64* bad) { report_all(q.head, bad); }
#else
typedef IndexReduceArgs Args;
DEVICE const IndexReduceArgs& own(const Args& q) { return q; }
template <int N> DEVICE vec<ELEMENT, N> source(const Args& q, i64 o, i64 entry, i64 j, i64*) {
    return load<N>(q.x + (o * q.count + entry) * q.width + j);
}
DEVICE void finish(const Args&, const i64*) {}
#endif

// Entries whose elements are loaded side by side, or computed, which takes registers that other warps need more.
constexpr int AT_ONCE = HEAD ? 2 : 4;

// Joins N columns' elements at some entries to `all`.
template <int N> DEVICE void join(C* all, const Args& q, i64 o, i64 j, const entry* list, u32 entries) {
    i64 bad[2] = {};
    for (u32 e = 0; e < entries; e += AT_ONCE) {
        vec<ELEMENT, N> v[AT_ONCE];
        #pragma unroll
        for (int k = 0; k < AT_ONCE; k++) if (e + k < entries) v[k] = source<N>(q, o, list[e + k], j, bad);
        #pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
            #pragma unroll
            for (int i = 0; i < N; i++) if (e + k < entries) all[i] = joined(all[i], to<C>(v[k].at[i]));
        }
    }
    finish(q, bad);
}

// y[o, i, j] for the threads from `thread` on, in steps of `threads`, if it has few entries.
DEVICE void reduce_few(const Args& q, i64 i, const entry* list, u32 entries, i64 thread, i64 threads) {
    const IndexReduceArgs& p = own(q);
    const i64 width = p.width, columns = p.outer * width;
    if (BASE && IN_PLACE && entries == 0) return;
    for (i64 c = thread * VEC; c < columns; c += threads * VEC) {
        const i64 o = c / width, j = c - o * width;
        const i64 at = (o * p.size + i) * width + j;
        C all[VEC];
        #pragma unroll
        for (int k = 0; k < VEC; k++) all[k] = nothing();
        if (BASE && (BASE_JOINS || entries == 0)) {
            const vec<ELEMENT, VEC> base = load<VEC>(p.base + at);
            #pragma unroll
            for (int k = 0; k < VEC; k++) all[k] = to<C>(base.at[k]);
        }
        join<VEC>(all, q, o, j, list, entries);
        vec<ELEMENT, VEC> y;
        #pragma unroll
        for (int k = 0; k < VEC; k++) y.at[k] = from<ELEMENT>(entries == 0 ? all[k] : reduced(all[k]));
        store<VEC>(p.y + at, y);
    }
}

// The same if it has many, by the whole block: each warp reduces a part.
DEVICE void reduce_many(const Args& q, i64 i, const entry* list, u32 entries) {
    __shared__ C partial[WARPS][32];
    const IndexReduceArgs& p = own(q);
    const i64 width = p.width, columns = p.outer * width;
    const u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const u32 begin = (u32)((u64)entries * warp / WARPS), end = (u32)((u64)entries * (warp + 1) / WARPS);
    for (i64 first = (i64)blockIdx.y * 32; first < columns; first += (i64)gridDim.y * 32) {
        i64 c = first + lane, o = c / width, j = c - o * width;
        C all = nothing();
        if (c < columns) join<1>(&all, q, o, j, list + begin, end - begin);
        partial[warp][lane] = all;
        __syncthreads();
        if (warp == 0 && c < columns) {
            const i64 at = (o * p.size + i) * width + j;
            all = BASE && BASE_JOINS ? to<C>(p.base[at]) : nothing();
            #pragma unroll
            for (int w = 0; w < WARPS; w++) all = joined(all, partial[w][lane]);
            p.y[at] = from<ELEMENT>(reduced(all));
        }
        __syncthreads();
    }
}

KERNEL(reduce, Args, q) {
    const IndexReduceArgs& p = own(q);
    const u32 count = (u32)p.count;
    const i64 thread = (i64)blockIdx.y * THREADS + threadIdx.x, threads = (i64)gridDim.y * THREADS;
#if SORTED
    // Where the entries of each i begin and end.
    __shared__ u32 bounds[2 * ROWS];
    for (u32 b = threadIdx.x; b < 2 * ROWS; b += THREADS) {
        const i64 i = blockIdx.x + (i64)(b / 2) * gridDim.x + b % 2;
        bounds[b] = i > 0 ? p.ends[min(i, p.size) - 1] : 0;
    }
    __syncthreads();
    // A part of the lanes for each position, if a block has several.
    bool has_many = false;
    #pragma unroll 1
    for (u32 turn = 0; turn < ROWS * LANES / THREADS; turn++) {
        const u32 r = turn * (THREADS / LANES) + threadIdx.x / LANES;
        const i64 i = blockIdx.x + (i64)r * gridDim.x;
        const u32 begin = bounds[2 * r], entries = bounds[2 * r + 1] - begin;
        const i64 first = ROWS == 1 ? thread : threadIdx.x % LANES, lanes = ROWS == 1 ? threads : LANES;
        if (i < p.size && entries <= LONG) reduce_few(q, i, p.entries + begin, entries, first, lanes);
        has_many |= entries > LONG;
    }
    if (!__syncthreads_or(has_many)) return;
    for (u32 r = 0; r < ROWS; r++) {
        const u32 entries = bounds[2 * r + 1] - bounds[2 * r];
        if (entries > LONG) reduce_many(q, blockIdx.x + (i64)r * gridDim.x, p.entries + bounds[2 * r], entries);
    }
#else
    __shared__ entry list[MOST];
    const u32 entries = find(p.index, count, blockIdx.x, p.size, p.faults, list);
    if (entries <= LONG) reduce_few(q, blockIdx.x, list, entries, thread, threads);
    else reduce_many(q, blockIdx.x, list, entries);
#endif
}
