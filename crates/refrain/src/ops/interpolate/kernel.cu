// Resizes the last axes of a tensor, or gives gradients back. Constants: those of taps.cu; INDEX; AXES, their number; RANK, that of the
// arguments; BLOCKS, of which a thread computes one place each; BACK; ADD.

// How a place of the result depends on an axis of the operand.
struct Reach {
    PLACE from, to;
#if BACK
    // The place of the result, and the first element that it is a part of.
    PLACE at, first;
#else
    Taps taps;
#endif
};

#if BACK
// The last element that element i is computed from.
DEVICE PLACE last_of(PLACE n, PLACE m, PLACE i) {
    const Taps t = taps_of(n, m, i);
    return t.first + t.count - 1;
}
#endif

DEVICE Reach reach_of(PLACE from, PLACE to, PLACE at) {
    Reach r;
    r.from = from;
    r.to = to;
#if BACK
    r.at = at;
    // Near it, by a guess.
    PLACE i = (PLACE)(((float)at - 0.5f * (TAPS - 1)) * ((float)to / (float)from));
    i = min(max(i, (PLACE)0), to - 1);
    while (i > 0 && last_of(from, to, i - 1) >= at) i--;
    while (i < to && last_of(from, to, i) < at) i++;
    r.first = i;
#else
    r.taps = taps_of(from, to, at);
#endif
    return r;
}

// Adds what the axes from D on give to the sums, where `place` is the place by the axes before them and `weight` their weight. Weights of 0 are
// left out: 0 times an infinite neighbour is NaN.
template <int D> struct Axes {
    static DEVICE void add(const Reach (&axes)[AXES], u64 place, C weight, const ELEMENT* x, u64 size, int blocks, C (&sums)[BLOCKS]) {
        const Reach& r = axes[D];
#if BACK
        for (PLACE i = r.first; i < r.to; i++) {
            const Taps t = taps_of(r.from, r.to, i);
            if (t.first > r.at) break;
            C w = (C)0;
            #pragma unroll
            for (int k = 0; k < TAPS; k++) {
                const PLACE j = min(max(t.first + k, (PLACE)0), r.from - 1);
                if (KIND == AREA || j == r.at) w += t.weights[k];
            }
            if (w != (C)0) Axes<D + 1>::add(axes, place * r.to + i, weight * w, x, size, blocks, sums);
        }
#elif KIND == AREA
        // Sums of rows, then of columns: a long sum has fewer additions one after the other. It is divided at the end.
        C parts[BLOCKS] = {};
        for (PLACE k = 0; k < r.taps.count; k++) {
            Axes<D + 1>::add(axes, place * r.from + r.taps.first + k, weight, x, size, blocks, parts);
        }
        #pragma unroll
        for (int b = 0; b < BLOCKS; b++) sums[b] += parts[b];
#else
        #pragma unroll
        for (int k = 0; k < TAPS; k++) {
            const C w = r.taps.weights[k];
            const PLACE j = min(max(r.taps.first + k, (PLACE)0), r.from - 1);
            if (w != (C)0) Axes<D + 1>::add(axes, place * r.from + j, weight * w, x, size, blocks, sums);
        }
#endif
    }
};

template <> struct Axes<AXES> {
    static DEVICE void add(const Reach (&)[AXES], u64 place, C weight, const ELEMENT* x, u64 size, int blocks, C (&sums)[BLOCKS]) {
        #pragma unroll
        for (int b = 0; b < BLOCKS; b++) {
            if (b < blocks) sums[b] += weight * to<C>(x[b * size + place]);
        }
    }
};

KERNEL(interpolate, InterpolateArgs, p) {
    const INDEX size = (INDEX)p.size_y, step = (INDEX)gridDim.x * blockDim.x;
    for (INDEX at = (INDEX)blockIdx.x * blockDim.x + threadIdx.x; at < (INDEX)p.n; at += step) {
        const INDEX group = at / size, place = at - group * size;
        Reach axes[AXES];
        INDEX rest = place;
        C count = (C)1;
        #pragma unroll
        for (int d = AXES - 1; d >= 0; d--) {
            // The arguments have the axes last.
            const i64 from = p.from[RANK - AXES + d], to = p.to[RANK - AXES + d];
            const INDEX own = (INDEX)(BACK ? from : to), q = rest / own;
            axes[d] = reach_of((PLACE)from, (PLACE)to, (PLACE)(rest - q * own));
            rest = q;
#if KIND == AREA && !BACK
            count *= (C)axes[d].taps.count;
#endif
        }
        C sums[BLOCKS] = {};
        const u64 block = (u64)group * BLOCKS;
        const int blocks = (int)min((i64)BLOCKS, p.blocks - (i64)block);
        Axes<0>::add(axes, 0, (C)1, p.x + block * p.size_x, p.size_x, blocks, sums);
        ELEMENT* y = p.y + block * p.size_y + place;
        #pragma unroll
        for (int b = 0; b < BLOCKS; b++) {
            if (b < blocks) put<ADD>(y + b * p.size_y, KIND == AREA && !BACK ? sums[b] / count : sums[b]);
        }
    }
}
