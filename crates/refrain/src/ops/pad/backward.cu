// The gradient of padding that repeats elements: each element sums the gradients of its copies, in the order of their places. Constants: ELEMENT; INDEX;
// RANK, the number of axes; MODE, one of those below; ADD.

#define REFLECT 2
#define REPLICATE 3
#define CIRCULAR 4

// Places of an axis that come from one element: `many`, of which the first is `first`. Those of REPLICATE follow each other; of others,
// `own` is the middle one, the one before it is `first` if there is one, and the one behind it `last`.
struct Places {
    INDEX many, first, own, last;

    DEVICE INDEX at(INDEX k) const {
#if MODE == REPLICATE
        return first + k;
#else
        const INDEX left = first != own;
        return k < left ? first : k == left ? own : last;
#endif
    }
};

DEVICE Places places_of(INDEX i, INDEX size, INDEX before, INDEX after) {
    Places p;
    p.own = before + i;
#if MODE == REPLICATE
    p.first = i == 0 ? 0 : p.own;
    p.last = i == size - 1 ? before + size + after : p.own + 1;
    p.many = p.last - p.first;
#else
#if MODE == CIRCULAR
    const bool left = i + before >= size, right = i < after;
    p.first = left ? i + before - size : p.own;
    p.last = before + size + i;
#else
    const bool left = i >= 1 && i <= before, right = i + 1 < size && i + 1 + after >= size;
    p.first = left ? before - i : p.own;
    p.last = before + 2 * size - 2 - i;
#endif
    p.many = 1 + (INDEX)left + (INDEX)right;
#endif
    return p;
}

// Adds the copies of an element, the last axis in the inner loop, which begin at `from` along the axes before D.
template <int D, typename C> DEVICE void add_copies(C& sum, const PadBackwardArgs& p, const Places* places, u64 from) {
    if constexpr (D == RANK) {
        sum += to<C>(p.d[from]);
    } else {
        for (INDEX k = 0; k < places[D].many; k++) {
            add_copies<D + 1>(sum, p, places, from + (u64)places[D].at(k) * p.strides[D]);
        }
    }
}

KERNEL(pad_backward, PadBackwardArgs, p) {
    typedef arithmetic<ELEMENT>::type C;
    const INDEX step = (INDEX)gridDim.x * blockDim.x;
    for (INDEX at = (INDEX)blockIdx.x * blockDim.x + threadIdx.x; at < (INDEX)p.n; at += step) {
        Places places[RANK];
        INDEX rest = at, all = 1;
        u64 from = 0;
        #pragma unroll
        for (int d = RANK - 1; d >= 0; d--) {
            const INDEX q = rest / (INDEX)p.size[d];
            places[d] = places_of(rest - q * (INDEX)p.size[d], (INDEX)p.size[d], (INDEX)p.before[d], (INDEX)p.after[d]);
            all *= places[d].many;
            from += (u64)places[d].own * p.strides[d];
            rest = q;
        }
        C sum = (C)0;
        if (all == 1) {
            sum = to<C>(p.d[from]);
        } else {
            add_copies<0>(sum, p, places, 0);
        }
        put<ADD>(p.y + at, sum);
    }
}
