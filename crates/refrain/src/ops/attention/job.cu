// What the kernels of attention begin with: of their `Job`, q, k and the like are [sequences, tokens, heads, dim], scores
// [sequences, heads, queries, keys]. Constants: BEFORE (scores are added: a mask, or those of the layer before), STRIDED (they
// have strides of their own), AFTER (scores, or in the
// backward pass their gradient, lie in memory), D_BEFORE (the gradient of the scores before is written), HAS_SCORES (scores
// come from a layer or go to one, in either pass), DROPS (dropout of the softmax weights), SKIP (random words of the first
// block that belong to no weight, 0 to 3; nearly always 0, so it costs nothing then), SCORE_VEC (neighbouring scores
// that can be moved in one instruction; divides `keys`).

extern __shared__ __align__(1024) unsigned char memory[];

// The number of a score, and of its softmax weight.
DEVICE i64 score_at(const Job& j, i64 pair, int query, int key) { return (pair * j.queries + query) * j.keys + key; }

// Whether the causal mask lets a query see a key.
DEVICE bool is_before(const Job& j, int key, int query) { return !CAUSAL || key <= query + (int)j.past; }

// The scores that are added to those of a query.
DEVICE const IN* before_of(const Job& j, i64 pair, int query) {
    if (!STRIDED) return j.before + score_at(j, pair, query, 0);
    i64 sequence = pair / j.heads;
    return j.before + sequence * j.before_sequence + (pair - sequence * j.heads) * j.before_head + query * j.before_query;
}

// Which softmax weights dropout keeps: those whose random word is at least the threshold.
struct Dropout {
    u64 seed, first;
    Threshold threshold;

    DEVICE explicit Dropout(const Job& j) : threshold((i64)j.threshold) {
        seed = DROPS ? (u64)j.position[0] : 0;
        first = DROPS ? (u64)j.position[1] + j.offset : 0;
    }
    // One thread of the launch keeps the position for the backward pass, because the generator may move.
    DEVICE void keep_position(const Job& j) const {
        if (DROPS && blockIdx.x == 0 && threadIdx.x == 0) {
            j.kept_position[0] = (i64)seed;
            j.kept_position[1] = (i64)first;
        }
    }
    DEVICE Words block(i64 at) const { return philox(seed, first + (u64)(at / 4)); }
    // Word i of a block, without an array whose index is known only at run time.
    static DEVICE u32 word(const Words& w, int i) {
        u32 low = i & 1 ? w.at[1] : w.at[0], high = i & 1 ? w.at[3] : w.at[2];
        return i & 2 ? high : low;
    }
    DEVICE bool keeps(i64 weight) const {
        i64 at = SKIP + weight;
        return threshold.keeps(word(block(at), (int)(at & 3)));
    }
    // Bit i: whether weight `weight + i` is kept, for the next COUNT weights (2 or 4).
    template <int COUNT> DEVICE u32 bits(i64 weight) const {
        i64 at = SKIP + weight;
        int skip = (int)(at & 3);
        Words a = block(at), b = a;
        if (skip + COUNT > 4) b = block(at + 4);
        u32 kept = 0;
        #pragma unroll
        for (int i = 0; i < COUNT; i++) {
            u32 x = skip + i < 4 ? word(a, skip + i) : word(b, skip + i - 4);
            kept |= (u32)threshold.keeps(x) << i;
        }
        return kept;
    }
};
