// Whole transforms in shared memory: LANES of them in a block of THREADS. Where ROWS, neighbouring threads have numbers of a transform,
// otherwise those of different ones. STAGES(S) lists S(radix, product of the radices before).

// A gap after every 128 bytes, so that numbers at power-of-two distances are in different banks.
#define RUN (64 / COMPUTE_SIZE)
#define PLANE (POINTS * LANES + POINTS * LANES / RUN + 1)

struct Points {
    Number* at;
    DEVICE Number& of(u32 point, u32 lane) const {
        u32 i = ROWS ? lane * POINTS + point : point * LANES + lane;
        return at[i + i / RUN];
    }
};

struct Table {
    const Number* at;
    DEVICE Number operator()(i64 e) const { return at[e]; }
};

static_assert(ROWS || THREADS % LANES == 0, "a thread has one lane");

// Unit and lane of the `t`-th of `units` for each lane: neighbouring threads have neighbours in memory.
template <u32 UNITS> DEVICE void place(u32 t, u32& unit, u32& lane) {
    if (ROWS) {
        lane = t / UNITS;
        unit = t - lane * UNITS;
    } else {
        unit = t / LANES;
        lane = t - unit * LANES;
    }
}

template <int RADIX, u32 BEFORE> DEVICE void stage(Points x, Points y, Table root) {
    constexpr u32 GROUPS = POINTS / (RADIX * BEFORE), APART = GROUPS * BEFORE;
    constexpr u32 STEP = N / POINTS * BEFORE;
    if (RADIX <= 8) {
        for (u32 t = threadIdx.x; t < APART * LANES; t += THREADS) {
            u32 unit, lane;
            place<APART>(t, unit, lane);
            u32 group = unit / BEFORE, q = unit - group * BEFORE;
            Number v[RADIX];
            #pragma unroll
            for (int k = 0; k < RADIX; k++) v[k] = x.of(unit + k * APART, lane);
            transform<RADIX>(v, root);
            #pragma unroll
            for (int k = 0; k < RADIX; k++) {
                if (k > 0 && GROUPS > 1) v[k] = times(v[k], root(STEP * group * k));
                y.of((group * RADIX + k) * BEFORE + q, lane) = v[k];
            }
        }
    } else {
        for (u32 t = threadIdx.x; t < POINTS * LANES; t += THREADS) {
            u32 point, lane;
            place<POINTS>(t, point, lane);
            u32 run = point / BEFORE, q = point - run * BEFORE, group = run / RADIX, k = run - group * RADIX;
            Number v = result_of<RADIX>(
                k, [&](int j) { return x.of(j * APART + group * BEFORE + q, lane); }, root);
            y.of(point, lane) = times(v, root(STEP * group * k));
        }
    }
    __syncthreads();
}

KERNEL(fft_block, FftArgs, p, __launch_bounds__(THREADS)) {
    extern __shared__ Number memory[];
    Points x = {memory}, y = {memory + PLANE};
    Number* table = memory + 2 * PLANE;
    for (u32 e = threadIdx.x; e < N; e += THREADS) table[e] = computed_root(e);
    __syncthreads();
    Table root = {table};
    const i64 first = (i64)blockIdx.x * LANES;
    // Where not ROWS, a thread has one lane.
    const Line mine = line_at(first + threadIdx.x % LANES, p.inner);
    for (u32 t = threadIdx.x; t < POINTS * LANES; t += THREADS) {
        u32 point, lane;
        place<POINTS>(t, point, lane);
        Number v = {(C)0, (C)0};
        if (first + lane < p.lines) v = point_of(p, ROWS ? line_at(first + lane, 1) : mine, point, root);
        x.of(point, lane) = v;
    }
    __syncthreads();
#define S(RADIX, BEFORE) stage<RADIX, BEFORE>(x, y, root); { Points other = x; x = y; y = other; }
    STAGES(S)
    constexpr u32 COUNT = RESULTS;
    for (u32 t = threadIdx.x; t < COUNT * LANES; t += THREADS) {
        u32 k, lane;
        place<COUNT>(t, k, lane);
        if (first + lane < p.lines) {
            store_result(
                p, ROWS ? line_at(first + lane, 1) : mine, k, [&](i64 point) { return x.of((u32)point, lane); }, root);
        }
    }
}
