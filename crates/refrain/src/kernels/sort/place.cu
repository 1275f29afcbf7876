// Where each key of a tile goes. Tiles are taken in the order in which blocks begin, so that a block waits only for blocks
// that run or have ended. Constants: FIRST, whether the keys are still where they came from; LAST, whether elements are the
// result.

// What a tile tells the later ones of its line, for each digit: nothing yet (0), the number of its own keys (plus 1), or that
// of all keys up to it (with this bit). A line is shorter than 2^31.
#define TOTAL 0x80000000u
// Tiles that are looked at side by side.
#define LOOKS 16

DEVICE u32 look(const u32* state) {
    u32 word;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(word) : "l"(state) : "memory");
    return word;
}
DEVICE void tell(u32* state, u32 word) {
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" :: "l"(state), "r"(word) : "memory");
}

// The lanes with the same digit.
DEVICE u32 same_lanes(u32 digit) {
    u32 same = FULL;
    #pragma unroll
    for (int b = 0; b < 8; b++) {
        const bool set = digit >> b & 1;
        const u32 with = __ballot_sync(FULL, set);
        same &= set ? with : ~with;
    }
    return same;
}

// The keys of a digit in the `tiles` tiles before one.
DEVICE u32 keys_before(const u32* state, i64 tiles) {
    u32 before = 0;
    for (; tiles > 0; tiles -= LOOKS) {
        u32 words[LOOKS];
        #pragma unroll
        for (int l = 0; l < LOOKS; l++) words[l] = l < tiles ? look(state - (l + 1) * DIGITS) : TOTAL;
        #pragma unroll
        for (int l = 0; l < LOOKS; l++) {
            while (words[l] == 0) words[l] = look(state - (l + 1) * DIGITS);
            if (words[l] & TOTAL) return before + (words[l] & ~TOTAL);
            before += words[l] - 1;
        }
        state -= LOOKS * DIGITS;
    }
    return before;
}

KERNEL(place, SortArgs, p, __launch_bounds__(THREADS)) {
    __shared__ union {
        u32 bins[WARPS][DIGITS];
        KEY keys[TILE];
        u32 entries[TILE];
    } shared;
    __shared__ u32 starts[DIGITS], ticket;
    const u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    if (threadIdx.x == 0) ticket = atomicAdd(p.tickets + p.pass, 1u);
    for (u32 i = threadIdx.x; i < WARPS * DIGITS; i += THREADS) (&shared.bins[0][0])[i] = 0;
    __syncthreads();
    const i64 line = ticket / p.tiles, tile = ticket - line * p.tiles, left = p.n - tile * TILE;
    const u32 valid = left < TILE ? (u32)left : TILE;
    const u64 start = first_of(p, line), line_start = (u64)line * p.n;
    // The keys of a warp are adjacent, in the order of iterations and lanes. Places without a key come last.
    const u32 first = warp * (32 * KEYS) + lane;
    KEY key[KEYS];
    u32 at[KEYS];
    #pragma unroll
    for (int k = 0; k < KEYS; k++) {
        const u32 i = first + k * 32;
        key[k] = i < valid ? key_at<FIRST>(p, line, start, tile * TILE + i) : ~(KEY)0;
    }
    #pragma unroll
    for (int k = 0; k < KEYS; k++) {
        const u32 digit = digit_of(key[k], p.pass), same = same_lanes(digit);
        at[k] = shared.bins[warp][digit] + __popc(same & ((1u << lane) - 1));
        __syncwarp();
        if (lane == __ffs(same) - 1) shared.bins[warp][digit] += __popc(same);
        __syncwarp();
    }
    __syncthreads();
    const u32 digit = threadIdx.x;
    u32* const state = p.states + (u64)ticket * DIGITS + digit;
    u32 count = 0;
    if (digit < DIGITS) {
        #pragma unroll
        for (int w = 0; w < WARPS; w++) {
            const u32 of_warp = shared.bins[w][digit];
            shared.bins[w][digit] = count;
            count += of_warp;
        }
        if (digit == DIGITS - 1) count -= TILE - valid;
        tell(state, tile == 0 ? TOTAL | count : count + 1);
        p.next_states[(u64)ticket * DIGITS + digit] = 0;
    }
    const u32 own = sum_before(count);
    if (digit < DIGITS) starts[digit] = own;
    __syncthreads();
    #pragma unroll
    for (int k = 0; k < KEYS; k++) {
        const u32 digit = digit_of(key[k], p.pass);
        at[k] += starts[digit] + shared.bins[warp][digit];
    }
    __syncthreads();
    #pragma unroll
    for (int k = 0; k < KEYS; k++) shared.keys[at[k]] = key[k];
    u32 entry[KEYS];
    #pragma unroll
    for (int k = 0; k < KEYS; k++) {
        const u32 i = first + k * 32;
        entry[k] = (u32)(tile * TILE) + i;
        if (!FIRST && i < valid) entry[k] = p.entries[line_start + entry[k]];
    }
    if (digit < DIGITS) {
        u32 before = 0;
        if (tile > 0) {
            before = keys_before(state, tile);
            tell(state, TOTAL | (before + count));
        }
        starts[digit] = p.starts[(line * p.passes + p.pass) * DIGITS + digit] + before - own;
    }
    __syncthreads();
    u32 to[KEYS];
    #pragma unroll
    for (int k = 0; k < KEYS; k++) {
        const u32 i = threadIdx.x + k * THREADS;
        if (i >= valid) continue;
        key[k] = shared.keys[i];
        to[k] = starts[digit_of(key[k], p.pass)] + i;
        if (!LAST) p.to_keys[line_start + to[k]] = key[k];
    }
    __syncthreads();
    #pragma unroll
    for (int k = 0; k < KEYS; k++) shared.entries[at[k]] = entry[k];
    __syncthreads();
    #pragma unroll
    for (int k = 0; k < KEYS; k++) {
        const u32 i = threadIdx.x + k * THREADS;
        if (i >= valid) continue;
        const u32 position = shared.entries[i];
#if LAST
        if (to[k] >= p.keep) continue;
        const u64 place = start_of(line, p.keep, p.inner) + (u64)to[k] * p.inner;
        p.positions[place] = position;
        if (VALUES) {
            IN element;
            const bool known = element_of(DESCENDING ? ~(u64)key[k] & ALL : (u64)key[k], &element);
            p.values[place] = known ? element : p.x[start + (u64)position * p.inner];
        }
#else
        p.to_entries[line_start + to[k]] = position;
#endif
    }
}
