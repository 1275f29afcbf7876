// Rows in registers: some lanes of a warp share a row. Constants: COMPUTE (the arithmetic), LANES (per row: a power
// of 2, at most 32), EACH (vectors per lane), VEC (elements per vector, which divides the width), ALIGNED (whether
// vectors can be loaded at once). Blocks have 256 threads.

// Elements per lane.
constexpr int HELD = EACH * VEC;

DEVICE int row_lane() { return threadIdx.x & (LANES - 1); }
DEVICE i64 row_number() { return (i64)blockIdx.x * (256 / LANES) + threadIdx.x / LANES; }

// The column of element `i` of those that the lane holds.
DEVICE int column_of(int i) { return (i / VEC * LANES + row_lane()) * VEC + i % VEC; }

// Loads and stores VEC neighbours.
template <typename T> DEVICE void fetch_vec(COMPUTE* x, const T* p) {
    if (ALIGNED) {
        vec<T, VEC> v = load<VEC>(p);
        #pragma unroll
        for (int i = 0; i < VEC; i++) x[i] = to<COMPUTE>(v.at[i]);
    } else {
        #pragma unroll
        for (int i = 0; i < VEC; i++) x[i] = to<COMPUTE>(p[i]);
    }
}
template <bool ADD_TO, typename T> DEVICE void put_vec(T* p, const COMPUTE* y) {
    if (ALIGNED) {
        vec<T, VEC> v;
        if (ADD_TO) v = load<VEC>(p);
        #pragma unroll
        for (int i = 0; i < VEC; i++) put<ADD_TO>(&v.at[i], y[i]);
        store<VEC>(p, v);
    } else {
        #pragma unroll
        for (int i = 0; i < VEC; i++) put<ADD_TO>(p + i, y[i]);
    }
}

// Loads the lane's elements of a row. `fill` is used beyond the width, and everywhere if the row does not exist.
template <typename T> DEVICE void fetch_row(COMPUTE* x, const T* row, int width, bool live, COMPUTE fill) {
    #pragma unroll
    for (int e = 0; e < EACH; e++) {
        const int at = column_of(e * VEC);
        if (live && at < width) {
            fetch_vec(x + e * VEC, row + at);
        } else {
            #pragma unroll
            for (int i = 0; i < VEC; i++) x[e * VEC + i] = fill;
        }
    }
}

template <bool ADD_TO, typename T> DEVICE void put_row(T* row, const COMPUTE* y, int width, bool live) {
    #pragma unroll
    for (int e = 0; e < EACH; e++) {
        const int at = column_of(e * VEC);
        if (live && at < width) put_vec<ADD_TO>(row + at, y + e * VEC);
    }
}

// The sum over a row. Every lane of the row gets the result.
DEVICE COMPUTE row_sum(const COMPUTE* x) {
    COMPUTE sum = x[0];
    #pragma unroll
    for (int i = 1; i < HELD; i++) sum += x[i];
    return warp_reduce<LANES>(sum, Add());
}
