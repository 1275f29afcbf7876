// Scores in memory, and their gradients, pass through shared memory. Those of the pairs of a block lie one behind the other, so that
// they are moved in long runs however short a row is. Constants: SCORE_RUN (neighbouring scores that can be moved in one
// instruction; if the scores before have strides, it divides `keys`), PADDED (`keys` is a multiple of 16, so that rows need a
// distance to avoid bank conflicts).

constexpr int PADDING = PADDED ? 8 : 0;

// The scores of the pairs of a block in shared memory.
struct Scores {
    i64 first_pair, first;
    // Of `count` scores, `whole` move in runs; of the rest, a thread has the one with the number `last`.
    int queries, keys, pitch, pairs, count, whole, last;

    DEVICE Scores(const Job& j, i64 first_pair) : first_pair(first_pair) {
        queries = (int)j.queries;
        keys = (int)j.keys;
        pitch = keys + PADDING;
        pairs = (int)min(j.pairs - first_pair, (i64)WARPS);
        count = pairs * queries * keys;
        whole = count / SCORE_RUN * SCORE_RUN;
        last = whole + (int)threadIdx.x;
        first = first_pair * queries * keys;
    }
    // Bytes of shared memory.
    DEVICE int room() const { return (WARPS * queries * pitch * (int)sizeof(IN) + 15) / 16 * 16; }
    // The row of a query of this warp's pair.
    DEVICE int row(int query) const { return ((threadIdx.x >> 5) * queries + query) * pitch; }
    // Where the score is that has this number in the block.
    DEVICE static int place(int at) { return at + at / (KEY_EIGHTS * 8) * PADDING; }

    // Begins to copy from global memory.
    DEVICE void load(IN* to, const IN* from) const {
        from += first;
        #pragma unroll 4
        for (int at = threadIdx.x * SCORE_RUN; at < whole; at += WARPS * 32 * SCORE_RUN) {
            constexpr int BYTES = SCORE_RUN * (int)sizeof(IN);
            copy_async<BYTES>(to + place(at), from + at, BYTES);
        }
        if (last < count) to[place(last)] = from[last];
    }
    // The same for the scores before.
    DEVICE void load_before(IN* to, const Job& j) const {
        if (!STRIDED) return load(to, j.before);
        int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
        if (warp >= pairs) return;
        #pragma unroll 8
        for (int query = 0; query < queries; query++) {
            const IN* from = before_of(j, first_pair + warp, query);
            #pragma unroll
            for (int begin = 0; begin < KEY_EIGHTS * 8; begin += 32 * SCORE_RUN) {
                constexpr int BYTES = SCORE_RUN * (int)sizeof(IN);
                int key = begin + lane * SCORE_RUN;
                if (key < keys) copy_async<BYTES>(to + row(query) + key, from + key, BYTES);
            }
        }
    }
    // Copies back to global memory.
    DEVICE void store(IN* to, const IN* from) const {
        to += first;
        #pragma unroll 4
        for (int at = threadIdx.x * SCORE_RUN; at < whole; at += WARPS * 32 * SCORE_RUN) {
            ::store<SCORE_RUN>(to + at, ::load<SCORE_RUN>(from + place(at)));
        }
        if (last < count) to[last] = from[place(last)];
    }
};
