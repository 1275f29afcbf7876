// Batch norm of elements, by the statistics of their channels. Constants: those of elements.cu.

typedef BatchNormArgs Args;

// Elements of one vector, as they are loaded.
struct Loaded { vec<IN, VEC> x; };
DEVICE void load_all(Loaded& v, const Args& p, INDEX at) { v.x = fetch(reinterpret_cast<const IN*>(p.x) + at); }

// How an element of a channel is normalised.
struct Channel { COMPUTE mean, scale, shift; };
DEVICE COMPUTE apply(const Loaded& v, int i, const Channel& c) { return (to<COMPUTE>(v.x.at[i]) - c.mean) * c.scale + c.shift; }
DEVICE IN* result_of(const Args& p) { return reinterpret_cast<IN*>(p.y); }

// All channels, for a block.
struct Channels {
#if MERGES || RUNNING
    COMPUTE mean[THREADS], scale[THREADS], shift[THREADS];
#endif
    DEVICE Channel of(const Args& p, INDEX c) const {
#if MERGES || RUNNING
        return {mean[c], scale[c], shift[c]};
#else
        return {
            reinterpret_cast<const COMPUTE*>(p.means)[c],
            to<COMPUTE>(reinterpret_cast<const PARAMETER*>(p.weight)[c]) * reinterpret_cast<const COMPUTE*>(p.invs)[c],
            to<COMPUTE>(reinterpret_cast<const PARAMETER*>(p.bias)[c])
        };
#endif
    }
};

// What one block stores when its elements are done.
struct Found {
#if MERGES
    Statistics batch;
    bool has_channel;
    DEVICE void store(const Args& p) const { if (has_channel) store_statistics(p.sums, threadIdx.x, batch); }
#else
    DEVICE void store(const Args&) const {}
#endif
};

// Fills `channels`. All threads of the block take part.
DEVICE Found find(const Args& p, Channels& channels) {
    Found found;
#if MERGES || RUNNING
    const int own = threadIdx.x < (int)p.channels ? threadIdx.x : 0;
    const COMPUTE own_weight = to<COMPUTE>(reinterpret_cast<const PARAMETER*>(p.weight)[own]);
    channels.shift[threadIdx.x] = to<COMPUTE>(reinterpret_cast<const PARAMETER*>(p.bias)[own]);
#endif
#if MERGES
    const double pivot = pivot_of(p.sums, own), share = 1.0 / (double)p.sums.elements;
    State sums;
    found.has_channel = merge_partials(p.sums, 0, sums);
    if (found.has_channel) {
        found.batch = statistics(p.sums, pivot, share, sums);
        channels.mean[threadIdx.x] = from<COMPUTE>(found.batch.mean);
        channels.scale[threadIdx.x] = own_weight * from<COMPUTE>(found.batch.inv);
    }
    __syncthreads();
#elif RUNNING
    Running running(extra<PARAMETER>(p.sums, 0), extra<PARAMETER>(p.sums, 1), own, p.sums.s[1]);
    channels.mean[threadIdx.x] = running.mean;
    channels.scale[threadIdx.x] = own_weight * running.inv;
    if (blockIdx.x == 0 && threadIdx.x < p.channels) {
        running.store(reinterpret_cast<COMPUTE*>(p.means), reinterpret_cast<COMPUTE*>(p.invs), own);
    }
    __syncthreads();
#endif
    return found;
}
