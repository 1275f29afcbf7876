// The backward pass of layer and root-mean-square norm over rows in registers. With `n = (x - mean) * inv` and
// `g = dy * weight`: `dx = inv * (g - mean(g) - n * mean(g * n))`. Constants: those of rows, IN
// (dtype of rows), PARAMETER (of the weight), ADD, SUMS (whether each block also leaves its sums for weight and bias).

// A row as it lies in memory; zeros where there is none.
struct Raw {
    vec<IN, VEC> at[EACH];

    DEVICE void fetch(const IN* row, int width, bool live) {
        #pragma unroll
        for (int e = 0; e < EACH; e++) {
            const int from = column_of(e * VEC);
            at[e] = {};
            if (!live || from >= width) continue;
            if (ALIGNED) {
                at[e] = load<VEC>(row + from);
            } else {
                #pragma unroll
                for (int i = 0; i < VEC; i++) at[e].at[i] = row[from + i];
            }
        }
    }
    DEVICE COMPUTE number(int i) const { return to<COMPUTE>(at[i / VEC].at[i % VEC]); }
    // What was computed of it is computed again after this, since the registers do not hold it.
    DEVICE void forget() {
        constexpr int WORDS = (int)sizeof(at) / 4;
        if (WORDS * 4 != (int)sizeof(at)) return;
        #pragma unroll
        for (int i = 0; i < WORDS; i++) asm volatile("" : "+r"(reinterpret_cast<u32*>(at)[i]));
    }
};

// Blocks on a multiprocessor that the registers must leave room for.
constexpr int RESIDENT = COMPUTE_SIZE == 4 && VEC > 1 && HELD <= 16 ? 2 : 1;

KERNEL(layer_norm_backward, LayerNormBackwardArgs, p, __launch_bounds__(256, RESIDENT)) {
    const IN *__restrict__ x = p.x, *__restrict__ dy = p.dy;
    const COMPUTE *__restrict__ inv = p.inv, *__restrict__ mean = p.mean;
    IN* __restrict__ dx = p.dx;
    const double share = p.share;
    const i64 rows = p.rows, rows_a_block = p.rows_a_block;
    const int width = (int)p.width;
    const int groups = 256 / LANES;
    const i64 start = blockIdx.x * rows_a_block;
    const i64 end = start + rows_a_block < rows ? start + rows_a_block : rows;
    i64 row = start + threadIdx.x / LANES;
    bool live = row < end;
    COMPUTE w[HELD], dw[HELD], db[HELD];
    Raw v, d;
    v.fetch(x + row * width, width, live);
    d.fetch(dy + row * width, width, live);
    COMPUTE r = live ? inv[row] : (COMPUTE)0, m = CENTRED && live ? mean[row] : (COMPUTE)0;
    fetch_row(w, p.weight, width, true, (COMPUTE)0);
    #pragma unroll
    for (int i = 0; i < HELD; i++) dw[i] = db[i] = (COMPUTE)0;

    for (i64 at = start; at < end; at += groups) {
        // The next row is loaded while this one is computed.
        const i64 next = row + groups;
        const bool follows = next < end;
        Raw next_v, next_d;
        next_v.fetch(x + next * width, width, follows);
        next_d.fetch(dy + next * width, width, follows);
        COMPUTE next_r = follows ? inv[next] : (COMPUTE)0, next_m = CENTRED && follows ? mean[next] : (COMPUTE)0;

        COMPUTE along = (COMPUTE)0, level = (COMPUTE)0;
        #pragma unroll
        for (int i = 0; i < HELD; i++) {
            const COMPUTE n = (v.number(i) - m) * r, g = d.number(i) * w[i], product = g * n;
            if (SUMS) {
                dw[i] += d.number(i) * n;
                db[i] += d.number(i);
            }
            along = i == 0 ? product : along + product;
            level = i == 0 ? g : level + g;
        }
        along = (COMPUTE)share * warp_reduce<LANES>(along, Add());
        level = CENTRED ? (COMPUTE)share * warp_reduce<LANES>(level, Add()) : (COMPUTE)0;
        v.forget();
        d.forget();
        #pragma unroll
        for (int e = 0; e < EACH; e++) {
            COMPUTE y[VEC];
            #pragma unroll
            for (int i = 0; i < VEC; i++) {
                const int of = e * VEC + i;
                const COMPUTE n = (v.number(of) - m) * r, g = d.number(of) * w[of];
                y[i] = r * (g - level - n * along);
            }
            const int to = column_of(e * VEC);
            if (live && to < width) put_vec<ADD>(dx + row * width + to, y);
        }

        v = next_v;
        d = next_d;
        r = next_r;
        m = next_m;
        row = next;
        live = follows;
    }

#if SUMS
    // So many numbers of a lane at a time.
    constexpr int PART = HELD < 16 ? HELD : 16;
    __shared__ State warps[8][LANES * PART];
    #pragma unroll
    for (int begin = 0; begin < HELD; begin += PART) {
        if (begin > 0) __syncthreads();
        #pragma unroll
        for (int i = 0; i < PART; i++) {
            State s = {dw[begin + i], db[begin + i]};
            #pragma unroll
            for (int distance = 16; distance >= LANES; distance /= 2) s = merge(s, exchange(s, distance));
            if ((threadIdx.x & 31) < LANES) warps[threadIdx.x >> 5][column_of(i)] = s;
        }
        __syncthreads();
        const int first = column_of(begin) - column_of(0);
        for (int column = threadIdx.x; column < LANES * PART && first + column < width; column += 256) {
            State s = warps[0][column];
            #pragma unroll
            for (int warp = 1; warp < 8; warp++) s = merge(s, warps[warp][column]);
            reinterpret_cast<State*>(p.partial)[blockIdx.x * (i64)width + first + column] = s;
        }
    }
#endif
}
