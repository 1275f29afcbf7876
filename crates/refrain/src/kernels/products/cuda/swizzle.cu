// Tiles in shared memory as groups of warps read them, and warps alone can. Constants: those of forms.cu.

// A tile in shared memory: lines of 128 bytes along k or across it. Within each eight lines, pieces of 16 bytes are permuted
// ("128-byte swizzling"). If lines are across k, the next 128 bytes of a line follow after the first 128 of all lines. Columns along
// k are permuted by `column` if DEALT. Numbers of four bytes are rounded to TF32; groups can't multiply those across k where they lie, so
// their pieces are permuted as warps load them without bank conflicts.
template <typename T, bool ALONG_K, int ACROSS_K, bool DEALT> struct Swizzled {
    typedef T Number;
    static constexpr int OUTER = ACROSS_K;
    static constexpr bool RUNS_ALONG_K = ALONG_K, IS_TF32 = sizeof(T) == 4;
    static constexpr bool FOR_WARPS = sizeof(T) == 4 && !ALONG_K;
    static constexpr int LINES = ALONG_K ? OUTER : TILE_K, LINE = ALONG_K ? TILE_K : OUTER;
    static constexpr int PIECE = 16 / (int)sizeof(T), PITCH = 8 * PIECE, BYTES = OUTER * TILE_K * (int)sizeof(T);
    // Lines so far apart are permuted alike.
    static constexpr int ALIKE = DEALT ? 16 : FOR_WARPS ? 4 : 8;
    static DEVICE int place(int line, int at) {
        if (DEALT) line = (line & ~15) + (line >> 1 & 1) * 8 + (line >> 2 & 3) * 2 + (line & 1);
        const int turn = FOR_WARPS ? (line & 3) * 2 : line & 7;
        return (at / PITCH * LINES + line) * PITCH + ((at % PITCH / PIECE ^ turn) * PIECE + at % PIECE);
    }
    static DEVICE int place_of(int outer, int k) { return ALONG_K ? place(outer, k) : place(k, outer); }
    // Bytes between what an instruction multiplies along k (32 bytes of a line, or 16 lines) and the next, and between 128 bytes
    // across k and the next 128.
    static constexpr int ON = ALONG_K ? 32 : 16 * 128, BESIDE = 128 * TILE_K;
    static DEVICE u64 described(u32 address) { return describe(address, 1024, ALONG_K ? 16 : BESIDE); }
};

// A thread's partial sums along k of a tile whose lines run across it: of the numbers of a piece, over every APART-th line.
template <typename TILE> struct SumsAlongK {
    typedef typename TILE::Number T;
    static constexpr int PIECE = TILE::PIECE, OUTER = TILE::OUTER, ACROSS = OUTER / PIECE, APART = BLOCK_THREADS / ACROSS;
    static constexpr int BYTES = APART * OUTER * 4;
    float v[PIECE];

    DEVICE SumsAlongK() {
        #pragma unroll
        for (int i = 0; i < PIECE; i++) v[i] = 0;
    }
    DEVICE void add(const T* tile) {
        #pragma unroll
        for (int k = threadIdx.x / ACROSS; k < TILE_K; k += APART) {
            vec<T, PIECE> x = load<PIECE>(tile + TILE::place(k, threadIdx.x % ACROSS * PIECE));
            #pragma unroll
            for (int i = 0; i < PIECE; i++) v[i] += to<float>(x.at[i]);
        }
    }
    // The block's sum of the thread's number, of OUTER. The products must no longer need the tiles in shared memory.
    DEVICE float whole(unsigned char* memory) const {
        float* all = reinterpret_cast<float*>(memory);
        __syncthreads();
        #pragma unroll
        for (int i = 0; i < PIECE; i++) all[threadIdx.x / ACROSS * OUTER + threadIdx.x % ACROSS * PIECE + i] = v[i];
        __syncthreads();
        float sum = 0;
        if (threadIdx.x >= OUTER) return sum;
        #pragma unroll
        for (int i = 0; i < APART; i++) sum += all[i * OUTER + threadIdx.x];
        return sum;
    }
};
