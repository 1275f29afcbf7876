// Tiles in shared memory as groups of warps read them, and warps alone can. Constants: those of forms.cu.

// A tile in shared memory: lines of 64 numbers (128 bytes) along k or across it. Within each eight lines, pieces of
// 16 bytes are permuted ("128-byte swizzling"). If lines are across k, the next 64 numbers of a line follow after the
// first 64 of all lines. Columns along k are permuted by `column`.
template <typename T, bool ALONG_K, int OUTER, bool DEALT> struct Swizzled {
    typedef T Number;
    static constexpr bool RUNS_ALONG_K = ALONG_K, IS_TF32 = false;
    static constexpr int LINES = ALONG_K ? OUTER : TILE_K, LINE = ALONG_K ? TILE_K : OUTER;
    static constexpr int PITCH = 64, BYTES = OUTER * TILE_K * 2, ALIKE = DEALT ? 16 : 8;
    static DEVICE int place(int line, int at) {
        if (DEALT) line = (line & ~15) + (line >> 1 & 1) * 8 + (line >> 2 & 3) * 2 + (line & 1);
        return (at / 64 * LINES + line) * PITCH + ((at % 64 / 8 ^ (line & 7)) * 8 + at % 8);
    }
    static DEVICE int place_of(int outer, int k) { return ALONG_K ? place(outer, k) : place(k, outer); }
    // Bytes between 16 numbers along k and the next 16, and between 64 numbers across k and the next 64.
    static constexpr int ON = ALONG_K ? 32 : 16 * 128, BESIDE = 64 * TILE_K * 2;
    static DEVICE u64 described(u32 address) { return describe(address, 1024, ALONG_K ? 16 : BESIDE); }
};

// A thread's partial sums of A's rows, whose tiles have lines across k: eight adjacent rows, over every APART-th number along k.
template <typename TILE> struct SumsOfRows {
    typedef typename TILE::Number T;
    static constexpr int ACROSS = TILE_M / 8, APART = BLOCK_THREADS / ACROSS, BYTES = APART * TILE_M * 4;
    float v[8];

    DEVICE SumsOfRows() {
        #pragma unroll
        for (int i = 0; i < 8; i++) v[i] = 0;
    }
    DEVICE void add(const T* tile) {
        #pragma unroll
        for (int k = threadIdx.x / ACROSS; k < TILE_K; k += APART) {
            vec<T, 8> x = load<8>(tile + TILE::place(k, threadIdx.x % ACROSS * 8));
            #pragma unroll
            for (int i = 0; i < 8; i++) v[i] += to<float>(x.at[i]);
        }
    }
    // The block's sum of the thread's row, of TILE_M. The products must no longer need the tiles in shared memory.
    DEVICE float whole(unsigned char* memory) const {
        float* all = reinterpret_cast<float*>(memory);
        __syncthreads();
        #pragma unroll
        for (int i = 0; i < 8; i++) all[threadIdx.x / ACROSS * TILE_M + threadIdx.x % ACROSS * 8 + i] = v[i];
        __syncthreads();
        float sum = 0;
        if (threadIdx.x >= TILE_M) return sum;
        #pragma unroll
        for (int i = 0; i < APART; i++) sum += all[i * TILE_M + threadIdx.x];
        return sum;
    }
};
