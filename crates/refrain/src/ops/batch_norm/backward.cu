// The gradient of x. In evaluation nothing of x or of sums goes into dx, of which a NaN would not vanish when it is
// multiplied by 0. Constants, beside those of elements.cu: TRAINING.

typedef BatchNormBackwardArgs Args;

// Elements of one vector, as they are loaded.
struct Loaded { vec<IN, VEC> x, dy; };
DEVICE void load_all(Loaded& v, const Args& p, INDEX at) {
    if (TRAINING) v.x = fetch(reinterpret_cast<const IN*>(p.x) + at);
    v.dy = fetch(reinterpret_cast<const IN*>(p.dy) + at);
}

// The gradient of an element is (dy - level - (x - mean) slope) scale.
struct Channel { COMPUTE mean, level, slope, scale; };
DEVICE COMPUTE apply(const Loaded& v, int i, const Channel& c) {
    COMPUTE d = to<COMPUTE>(v.dy.at[i]);
    if (TRAINING) d = d - c.level - (to<COMPUTE>(v.x.at[i]) - c.mean) * c.slope;
    return d * c.scale;
}
DEVICE IN* result_of(const Args& p) { return reinterpret_cast<IN*>(p.dx); }

// All channels, for a block.
struct Channels {
#if MERGES
    COMPUTE mean[THREADS], scale[THREADS], level[THREADS], slope[THREADS];
#endif
    DEVICE Channel of(const Args& p, INDEX c) const {
#if MERGES
        return {mean[c], level[c], slope[c], scale[c]};
#else
        const COMPUTE *totals = reinterpret_cast<const COMPUTE*>(p.totals), share = (COMPUTE)p.share;
        const COMPUTE inv = reinterpret_cast<const COMPUTE*>(p.invs)[c];
        const COMPUTE scale = to<COMPUTE>(reinterpret_cast<const PARAMETER*>(p.weight)[c]) * inv;
        if (!TRAINING) return {(COMPUTE)0, (COMPUTE)0, (COMPUTE)0, scale};
        return {reinterpret_cast<const COMPUTE*>(p.means)[c], totals[2 * c] * share, totals[2 * c + 1] * inv * share, scale};
#endif
    }
};

// What one block stores when its elements are done.
struct Found {
#if MERGES
    State sums;
    bool has_channel;
    DEVICE void store(const Args& p) const { if (has_channel) finish(p.sums, threadIdx.x, sums); }
#else
    DEVICE void store(const Args&) const {}
#endif
};

// Fills `channels`. All threads of the block take part.
DEVICE Found find(const Args& p, Channels& channels) {
    Found found;
#if MERGES
    const COMPUTE share = (COMPUTE)p.share;
    const int own = threadIdx.x < (int)p.channels ? threadIdx.x : 0;
    const COMPUTE inv = reinterpret_cast<const COMPUTE*>(p.invs)[own];
    channels.mean[threadIdx.x] = reinterpret_cast<const COMPUTE*>(p.means)[own];
    channels.scale[threadIdx.x] = to<COMPUTE>(reinterpret_cast<const PARAMETER*>(p.weight)[own]) * inv;
    found.has_channel = merge_partials(p.sums, 0, found.sums);
    if (found.has_channel) {
        channels.level[threadIdx.x] = found.sums.level * share;
        channels.slope[threadIdx.x] = found.sums.slope * inv * inv * share;
    }
    __syncthreads();
#endif
    return found;
}
