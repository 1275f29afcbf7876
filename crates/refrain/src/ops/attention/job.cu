// What the kernels of attention begin with: of their `Job`, q, k and the like are [sequences, tokens, heads, dim], scores
// [sequences, heads, queries, keys]. Constants: BEFORE (scores are added: a mask, or those of the layer before), STRIDED (they
// have strides of their own), AFTER (scores, or in the
// backward pass their gradient, lie in memory), D_BEFORE (the gradient of the scores before is written), HAS_SCORES (scores
// come from a layer or go to one, in either pass), DROPS (dropout of the softmax weights), SCORE_VEC (neighbouring scores that
// can be moved in one instruction; divides `keys`).

extern __shared__ __align__(1024) unsigned char memory[];

// The number of a row of scores, and of a score.
DEVICE i64 row_at(const Job& j, i64 pair, int query) { return pair * j.queries + query; }
DEVICE i64 score_at(const Job& j, i64 pair, int query, int key) { return row_at(j, pair, query) * j.keys + key; }

// Whether the causal mask lets a query see a key.
DEVICE bool is_before(const Job& j, int key, int query) { return !CAUSAL || key <= query + (int)j.past; }

// The scores that are added to those of a query.
DEVICE const IN* before_of(const Job& j, i64 pair, int query) {
    if (!STRIDED) return j.before + score_at(j, pair, query, 0);
    i64 sequence = pair / j.heads;
    return j.before + sequence * j.before_sequence + (pair - sequence * j.heads) * j.before_head + query * j.before_query;
}

// Which softmax weights dropout keeps: of each row of scores a bit for each key, as draw.cu wrote them.
struct Dropout {
    const u64* kept;
    int words;

    DEVICE explicit Dropout(const Job& j) : kept(j.kept), words((int)j.words) {}
    // Bit i: whether the weight of key `first + i` is kept, as far as the word of `first` says. Keys that are not there have none.
    DEVICE u64 from(i64 row, int first) const {
        const int word = first / 64;
        return DROPS && word < words ? kept[row * words + word] >> first % 64 : 0;
    }
    DEVICE bool keeps(i64 row, int key) const { return from(row, key) & 1; }
    // The same for the next COUNT keys (2 or 4), which may lie in two words.
    template <int COUNT> DEVICE u32 bits(i64 row, int first) const {
        u32 bits = (u32)from(row, first);
        const int left = 64 - first % 64;
        if (left < COUNT) bits |= (u32)from(row, first + left) << left;
        return bits;
    }
};
