// Draws which softmax weights dropout keeps: those whose random word is at least the threshold. Weights are numbered row by row, as
// their words are. A thread writes the bits of the next 64 keys of a row. Constant: INDEX (the type of their number).

KERNEL(attention_draw, DrawJob, j, __launch_bounds__(256)) {
    const u64 seed = (u64)j.state[0], first = (u64)j.state[1] + j.offset;
    const Threshold threshold(j.threshold);
    const INDEX words = (INDEX)j.words, count = (INDEX)j.rows * words;
    // The bits of the words of a block.
    auto four = [&](u64 block) -> u32 {
        const Words drawn = philox(seed, block);
        u32 bits = 0;
        #pragma unroll
        for (int i = 0; i < 4; i++) bits |= (u32)threshold.keeps(drawn.at[i]) << i;
        return bits;
    };
    for (INDEX at = (INDEX)blockIdx.x * 256 + threadIdx.x; at < count; at += (INDEX)gridDim.x * 256) {
        const INDEX row = at / words;
        const int key = (int)(at - row * words) * 64, keys = min((int)j.keys - key, 64);
        // The words of these keys begin within a block.
        const i64 begin = j.skip + (i64)row * j.keys + key;
        const int ahead = (int)(begin & 3);
        const u64 block = first + (u64)(begin >> 2);
        u64 kept = 0;
        #pragma unroll 4
        for (int i = 0; i < 16; i++) if (4 * i < ahead + keys) kept |= (u64)four(block + i) << 4 * i;
        kept >>= ahead;
        if (ahead + keys > 64) kept |= (u64)four(block + 16) << (64 - ahead);
        j.kept[at] = keys < 64 ? kept & ((1ull << keys) - 1) : kept;
    }
}
