// Tiles of operands in shared memory, in their order in memory. Constants, beside those of common.cu and forms.cu:
//   A_COPY, B_COPY   elements per copy
//   FOLLOWS          whether A is the rows of the product before, which the block has in shared memory (stage.cu)
//   B_CACHED         whether B is small, and so many blocks read it that each multiprocessor should cache it

// A tile of an operand in shared memory: lines of elements that are adjacent in memory. Lines are padded so that the
// lanes of a warp have no bank conflicts. If lines are along k and f32 is multiplied, they are cut into parts, and
// the same part of all lines is stored together.
template <typename T, bool ALONG_K, int OUTER> struct Tile {
    typedef T Number;
    static constexpr bool RUNS_ALONG_K = ALONG_K;
    static constexpr bool IS_TF32 = false;
    static constexpr bool ROUNDED = !WIDE && sizeof(T) == 4;
    static constexpr int LINES = ALONG_K ? OUTER : TILE_K, LINE = ALONG_K ? TILE_K : OUTER;
    static constexpr int PART = WIDE && ALONG_K ? 16 : LINE;
    static constexpr int APART = !ALONG_K ? ROUNDED ? 4 : 8 : !WIDE ? 8 : BOTH_ALONG_K ? 0 : 4;
    static constexpr int PITCH = PART + APART;
    // Lines that are a multiple of so many lines apart lie PITCH numbers apart for each line.
    static constexpr int ALIKE = 1;
    static constexpr int BYTES = LINE / PART * LINES * PITCH * (int)sizeof(T);
    static DEVICE int place(int line, int at) { return (at / PART * LINES + line) * PITCH + at % PART; }
    static DEVICE int place_of(int outer, int k) { return ALONG_K ? place(outer, k) : place(k, outer); }
};

#if FOLLOWS
// The rows of the product before.
struct TileA {
    static constexpr bool IS_TF32 = false;
    static DEVICE int place_of(int outer, int k) { return outer * A_PITCH + k; }
};
#else
typedef Tile<A_TYPE, A_ALONG_K, TILE_M> TileA;
#endif
typedef Tile<B_TYPE, B_ALONG_K, TILE_N> TileB;

// The pieces of an operand's tiles that a thread copies, tile after tile along k: COPY adjacent elements per piece,
// in every SWEEP-th line.
template <typename To, int COPY, bool CACHED> struct Pieces {
    typedef typename To::Number T;
    static constexpr bool ALONG_K = To::RUNS_ALONG_K;
    static constexpr int PER_LINE = To::LINE / COPY, SWEEP = BLOCK_THREADS / PER_LINE;
    static constexpr int EACH = (To::LINES + SWEEP - 1) / SWEEP;
    static_assert(BLOCK_THREADS % PER_LINE == 0, "a thread's pieces begin at one place of their lines");

    // The first piece of the next tile; steps from it to the thread's others and to the tile after.
    const T* from;
    i64 sweep, advance;
    int line, at, outer_left;

    // The first tile starts at `first`, with lines `step` elements apart; `left` numbers exist across k.
    DEVICE Pieces(const T* first, i64 step, int left)
        : sweep(SWEEP * step), advance(ALONG_K ? TILE_K : TILE_K * step), line(threadIdx.x / PER_LINE),
          at(threadIdx.x % PER_LINE * COPY), outer_left(left) {
        from = first + line * step + at;
    }

    // Copies the next tile, of which `k_left` numbers exist along k; the rest is filled with zeros.
    DEVICE void copy(T* tile, int k_left) {
        T* to = tile + To::place(line, at);
        int lines_left = (ALONG_K ? outer_left : k_left) - line, line_left = (ALONG_K ? k_left : outer_left) - at;
        int whole = min(max(line_left, 0), COPY) * (int)sizeof(T);
        #pragma unroll
        for (int s = 0; s < EACH; s++) {
            if (To::LINES % SWEEP == 0 || line + s * SWEEP < To::LINES) {
                int bytes = s * SWEEP < lines_left ? whole : 0;
                T* piece = SWEEP % To::ALIKE == 0 ? to + s * SWEEP * To::PITCH : tile + To::place(line + s * SWEEP, at);
                copy_async<COPY * (int)sizeof(T), CACHED>(piece, from + s * sweep, bytes);
            }
        }
        from += advance;
    }
};

// A's tiles from row `row0` and B's tiles from column `col0`, both starting at k.
template <typename TILE> DEVICE Pieces<TILE, A_COPY, false> pieces_of_a(const Job& j, const A_TYPE* a, int row0, int k) {
    i64 step = A_ALONG_K ? j.a_row : j.a_col, at = A_ALONG_K ? row0 * step + k : k * step + row0;
    return Pieces<TILE, A_COPY, false>(a + at, step, (int)j.m - row0);
}
template <typename TILE> DEVICE Pieces<TILE, B_COPY, B_CACHED> pieces_of_b(const Job& j, const B_TYPE* b, int col0, int k) {
    i64 step = B_ALONG_K ? j.b_col : j.b_row, at = B_ALONG_K ? col0 * step + k : k * step + col0;
    return Pieces<TILE, B_COPY, B_CACHED>(b + at, step, (int)j.n - col0);
}

// A lane writes four adjacent elements of a row for each two fragments.
constexpr int LANE_COLUMNS = 4, GROUPS = FRAGS_N / 2, GROUP_STEP = 16;

// The first of them.
DEVICE int lane_column() {
    int lane = threadIdx.x & 3;
    return PAIRED ? lane * 4 : (lane & 1) * 8 + (lane >> 1) * 4;
}

// Those of row g (`half` 0) or g + 8 of two fragments. If columns are not paired, neighbouring lanes exchange: one takes the
// first fragment, the other one the second.
DEVICE void lane_row(float* v, const float (*acc)[4], int half) {
    float x[4] = {acc[0][half * 2], acc[0][half * 2 + 1], acc[1][half * 2], acc[1][half * 2 + 1]};
    bool second = !PAIRED && (threadIdx.x & 1);
    #pragma unroll
    for (int i = 0; i < 2; i++) {
        float other = PAIRED ? x[2 + i] : __shfl_xor_sync(FULL, second ? x[i] : x[2 + i], 1);
        v[i] = second ? other : x[i];
        v[2 + i] = second ? x[2 + i] : other;
    }
}

// Reads the bias of a lane's columns; `col` is the first.
DEVICE void lane_biases(const Job& j, int col, vec<BIAS_TYPE, LANE_COLUMNS>* bias) { biases<GROUPS, LANE_COLUMNS, GROUP_STEP>(j, col, bias); }

// Writes a warp's part of C; its first row is `row` and the lane's first column is `col`. What four rows need besides
// the product is loaded before any of these rows is written.
DEVICE void finish_tile(
    const Job& j, const Place& p, int row, int col, float (*acc)[FRAGS_N][4], const vec<BIAS_TYPE, LANE_COLUMNS>* bias
) {
    constexpr int ROWS = 2 * FRAGS_M, AT_ONCE = ROWS < 4 ? ROWS : 4;
    row += (threadIdx.x & 31) >> 2;
    #pragma unroll
    for (int begin = 0; begin < ROWS; begin += AT_ONCE) {
        Beside<LANE_COLUMNS> beside[AT_ONCE][GROUPS];
        #pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            int r = row + (begin + i) * 8;
            if (r < j.m) read_beside<GROUPS, LANE_COLUMNS, GROUP_STEP>(j, place_of(j, p, r, col), col, beside[i]);
        }
        #pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            int r = row + (begin + i) * 8, of = begin + i;
            float v[GROUPS][LANE_COLUMNS];
            #pragma unroll
            for (int g = 0; g < GROUPS; g++) lane_row(v[g], acc[of / 2] + 2 * g, of % 2);
            if (r < j.m) finish<GROUPS, LANE_COLUMNS, GROUP_STEP>(j, p, r, col, v, bias, beside[i]);
        }
    }
}

#if NORM
static_assert(TILE_M * ROW_PITCH * (int)sizeof(ROW_TYPE) <= ROW_BYTES && ROW_PITCH >= TILE_N, "the launch has room for rows");

// Writes the norm of the rows that the block holds. Lanes take rows in turn.
DEVICE void finish_rows(const Job& j, const Place& p) {
    const row_norm::FromRegisters parameters(j.norm[0]);
    __syncthreads();
    constexpr int AT_ONCE = BLOCK_THREADS / row_norm::ROW_LANES;
    // Some rows at a time, so that one does not wait for the sums of another.
    #pragma unroll 4
    for (int begin = 0; begin < TILE_M; begin += AT_ONCE) {
        int at = begin + (int)threadIdx.x / row_norm::ROW_LANES, row = p.rows.first + at;
        bool live = at < TILE_M && row < j.m;
        row_norm::normalise(j.norm[0], p.batch * j.m + row, live, p.rows.tile + at * ROW_PITCH, parameters);
    }
}
#endif

// Writes a block's tile. Nothing that is in `memory` may be needed by this thread any more.
DEVICE void finish_block(const Job& j, Place& p, float (*acc)[FRAGS_N][4], unsigned char* memory) {
    int col = p.tile_n * TILE_N + warp_col() + lane_column();
    vec<BIAS_TYPE, LANE_COLUMNS> bias[GROUPS];
    lane_biases(j, col, bias);
#if NORM || PASSES
    p.rows = {reinterpret_cast<ROW_TYPE*>(memory), p.tile_m * TILE_M};
#endif
#if NORM
    __syncthreads();
#endif
    finish_tile(j, p, p.tile_m * TILE_M + warp_row(), col, acc, bias);
#if NORM
    finish_rows(j, p);
#endif
}
