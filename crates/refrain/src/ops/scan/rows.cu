// Lines of neighbours. The warps of a line take 32 * ITEMS steps each at a time, each lane NEAR neighbours of them. Constants:
// VECTORS, whether neighbours are loaded and stored at once; WARPS, the warps of a line or chunk: those of a block, or fewer
// if the line has one chunk that they take at once; TOTALS, whether only the total of each chunk is wanted.

#define ITEMS 8
#define NEAR 4
#define GROUPS (ITEMS / NEAR)

struct Steps { State at[GROUPS][NEAR]; };

// Where the neighbours from step t on lie, and where the v-th of them is there.
DEVICE i64 vector_at(const ScanArgs& p, i64 base, i64 t) { return base + (REVERSE ? p.n - NEAR - t : t); }
DEVICE int in_vector(int v) { return REVERSE ? NEAR - 1 - v : v; }

// The steps of a lane, the first of which is t.
DEVICE Steps steps_from(const ScanArgs& p, i64 base, i64 t, i64 end) {
    Steps s;
    #pragma unroll
    for (int k = 0; k < GROUPS; k++, t += 32 * NEAR) {
#if VECTORS
        vec<IN, NEAR> x;
        if (t < end) x = load<NEAR>(p.x + vector_at(p, base, t));
        #pragma unroll
        for (int v = 0; v < NEAR; v++) s.at[k][v] = t < end ? State{to<C>(x.at[in_vector(v)])} : nothing();
#else
        #pragma unroll
        for (int v = 0; v < NEAR; v++) s.at[k][v] = t + v < end ? step(p, base, t + v) : nothing();
#endif
    }
    return s;
}

// Stores what the steps come to behind those ahead.
DEVICE void finish_from(const ScanArgs& p, i64 base, i64 t, i64 end, const Steps& s, const State& ahead) {
    #pragma unroll
    for (int k = 0; k < GROUPS; k++, t += 32 * NEAR) {
#if VECTORS
        if (t >= end) continue;
        OUT* to = p.y + vector_at(p, base, t);
        vec<OUT, NEAR> y;
        if (ADD) y = load<NEAR>(to);
        #pragma unroll
        for (int v = 0; v < NEAR; v++) put<ADD>(&y.at[in_vector(v)], combine(ahead, s.at[k][v]).value);
        store(to, y);
#else
        C previous[NEAR];
        #pragma unroll
        for (int v = 0; v < NEAR; v++) if (t + v < end) previous[v] = before(p, base, t + v);
        #pragma unroll
        for (int v = 0; v < NEAR; v++) if (t + v < end) finish(p, base, t + v, combine(ahead, s.at[k][v]), previous[v]);
#endif
    }
}

// Turns each step of a warp into what the steps up to it come to. Returns what all do.
DEVICE State scan_steps(Steps& s, int lane) {
    State before = nothing();
    #pragma unroll
    for (int k = 0; k < GROUPS; k++) {
        #pragma unroll
        for (int v = 1; v < NEAR; v++) s.at[k][v] = combine(s.at[k][v - 1], s.at[k][v]);
        const State up_to = scan_warp(s.at[k][NEAR - 1], lane), other = moved_up(up_to, 1);
        const State ahead = lane == 0 ? before : combine(before, other);
        #pragma unroll
        for (int v = 0; v < NEAR; v++) s.at[k][v] = combine(ahead, s.at[k][v]);
        before = combine(before, of_lane(up_to, 31));
    }
    return before;
}

// What the first chunks of a line come to. Each thread of the block takes some that follow each other.
DEVICE State of_chunks(const State* line, i64 chunks) {
    __shared__ State sums[WARP_COUNT];
    const i64 each = (chunks + blockDim.x - 1) / blockDim.x, first = threadIdx.x * each;
    const i64 end = first + each < chunks ? first + each : chunks;
    State s = nothing();
    for (i64 i = first; i < end; i++) s = combine(s, line[i]);
    s = scan_warp(s, threadIdx.x & 31);
    if ((threadIdx.x & 31) == 31) sums[threadIdx.x >> 5] = s;
    __syncthreads();
    State all = sums[0];
    #pragma unroll
    for (int w = 1; w < WARP_COUNT; w++) all = combine(all, sums[w]);
    return all;
}

KERNEL(scan_rows, ScanArgs, p) {
    __shared__ State sums[2][WARP_COUNT];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, own = warp % WARPS;
    const i64 item = (i64)blockIdx.x * (WARP_COUNT / WARPS) + warp / WARPS;
    const i64 line = item / p.chunks, chunk = item - line * p.chunks;
    const i64 base = line * p.n, start = chunk * p.length;
    const i64 limit = start + p.length < p.n ? start + p.length : p.n;
    // A warp beyond the lines has no steps.
    const i64 end = line < p.outer ? limit : start;
    i64 from = start, t = start + own * (32 * ITEMS) + lane * NEAR;
    Steps s = steps_from(p, base, t, end);
    State ahead = nothing();
    if (!TOTALS && p.chunks > 1) ahead = of_chunks(totals(p) + line * p.chunks, chunk);
    for (int turn = 0;; turn ^= 1) {
        const State before = scan_steps(s, lane);
        State here = ahead;
        if (WARPS > 1) {
            if (lane == 0) sums[turn][warp] = before;
            __syncthreads();
            #pragma unroll
            for (int w = 0; w < WARPS; w++) {
                if (w == own) here = ahead;
                ahead = combine(ahead, sums[turn][warp - own + w]);
            }
        }
        if (!TOTALS) finish_from(p, base, t, end, s, here);
        from += WARPS * (32 * ITEMS);
        if (from >= end) break;
        t += WARPS * (32 * ITEMS);
        s = steps_from(p, base, t, end);
    }
    if (TOTALS && threadIdx.x == 0) totals(p)[item] = ahead;
}
