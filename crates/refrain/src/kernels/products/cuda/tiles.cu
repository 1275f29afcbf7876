// Tiles of operands in shared memory, in their order in memory, and their products on tensor cores. Constants, beside
// those of common.cu:
//   FORM         one of those below
//   A_ALONG_K    A's elements along k are adjacent in memory; else those along m
//   B_ALONG_K    B's elements along k are adjacent in memory; else those along n
//   A_COPY, B_COPY   elements per copy
//   TILE_K       numbers of a tile along k (16, 32 or 64)
//   WARPS_M, WARPS_N, FRAGS_M, FRAGS_N   warps of a block; 16 x 8 fragments of a warp's part of C (FRAGS_N even)

// f16 and bf16, to which f32 is rounded; f32 rounded to TF32; f32 split into the sum of two TF32 numbers.
#define F16 0
#define BF16 1
#define TF32 2
#define SPLIT_TF32 3

#define WIDE (FORM == TF32 || FORM == SPLIT_TF32)

constexpr int BLOCK_THREADS = WARPS_M * WARPS_N * 32;
constexpr int TILE_M = WARPS_M * FRAGS_M * 16, TILE_N = WARPS_N * FRAGS_N * 8;
constexpr bool BOTH_ALONG_K = A_ALONG_K && B_ALONG_K;

// A tile of an operand in shared memory: lines of elements that are adjacent in memory. Lines are padded so that the
// lanes of a warp have no bank conflicts. If lines are along k and f32 is multiplied, they are cut into parts, and
// the same part of all lines is stored together.
template <typename T, bool ALONG_K, int OUTER> struct Tile {
    typedef T Number;
    static constexpr bool RUNS_ALONG_K = ALONG_K;
    static constexpr bool ROUNDED = !WIDE && sizeof(T) == 4;
    static constexpr int LINES = ALONG_K ? OUTER : TILE_K, LINE = ALONG_K ? TILE_K : OUTER;
    static constexpr int PART = WIDE && ALONG_K ? 16 : LINE;
    static constexpr int APART = !ALONG_K ? ROUNDED ? 4 : 8 : !WIDE ? 8 : BOTH_ALONG_K ? 0 : 4;
    static constexpr int PITCH = PART + APART;
    static constexpr int BYTES = LINE / PART * LINES * PITCH * (int)sizeof(T);
    static DEVICE int place(int line, int at) { return (at / PART * LINES + line) * PITCH + at % PART; }
    static DEVICE int place_of(int outer, int k) { return ALONG_K ? place(outer, k) : place(k, outer); }
};

// Columns of C are assigned to fragments in pairs, so that a lane holds four adjacent elements of a row, two in each
// fragment of a pair. This is not done if B's fragments are transposed by the load, which needs eight adjacent
// elements.
constexpr bool PAIRED = B_ALONG_K || sizeof(B_TYPE) == 4;
constexpr int LANE_COLUMNS = PAIRED ? 4 : 2;

// The column, within a warp's part of C, of line `line` of fragment `l`.
DEVICE int column(int l, int line) {
    return PAIRED ? (l >> 1) * 16 + (line >> 1) * 4 + (l & 1) * 2 + (line & 1) : l * 8 + line;
}

typedef Tile<A_TYPE, A_ALONG_K, TILE_M> TileA;
typedef Tile<B_TYPE, B_ALONG_K, TILE_N> TileB;

// The pieces of an operand's tiles that a thread copies, tile after tile along k: COPY adjacent elements per piece,
// in every SWEEP-th line.
template <typename To, int COPY> struct Pieces {
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
                copy_async<COPY * (int)sizeof(T)>(to + s * SWEEP * To::PITCH, from + s * sweep, bytes);
            }
        }
        from += advance;
    }
};

#if WIDE

// A lane's four numbers of a row: TF32 numbers, or the high and low TF32 parts.
constexpr int PARTS = FORM == SPLIT_TF32 ? 2 : 1;
struct Quad { u32 at[PARTS][4]; };

// A lane's four numbers along k of a row of a 16-deep fragment. Any four will do if they are the same for A and B:
// adjacent numbers if both are along k, every fourth number otherwise.
template <typename TILE> DEVICE Quad quad(const IN* tile, int outer, int k, int lane) {
    float x[4];
    if (BOTH_ALONG_K) {
        vec<float, 4> v = load<4>(tile + TILE::place_of(outer, k + 4 * lane));
        #pragma unroll
        for (int i = 0; i < 4; i++) x[i] = v.at[i];
    } else {
        #pragma unroll
        for (int i = 0; i < 4; i++) x[i] = tile[TILE::place_of(outer, k + lane + 4 * i)];
    }
    Quad q;
    #pragma unroll
    for (int i = 0; i < 4; i++) {
        if (FORM == SPLIT_TF32) split_tf32(x[i], q.at[0][i], q.at[PARTS - 1][i]);
        else q.at[0][i] = round_tf32(x[i]);
    }
    return q;
}

// d[l] += a y[l], each 16 x 8 x 16, for the given parts of A's upper and lower rows and of B. A product waits for the
// previous product with the same sum, so products of other sums are between them.
DEVICE void multiply_parts(float (*d)[4], const Quad* a, int part_a, const Quad* y, int part_b) {
    const u32 *u = a[0].at[part_a], *w = a[1].at[part_a];
    #pragma unroll
    for (int half = 0; half < 4; half += 2) {
        #pragma unroll
        for (int l = 0; l < FRAGS_N; l++) {
            const u32* z = y[l].at[part_b];
            multiply_tf32(d[l], u[half], w[half], u[half + 1], w[half + 1], z[half], z[half + 1]);
        }
    }
}

DEVICE void multiply_quads(float (*d)[4], const Quad* a, const Quad* y) {
    if (FORM == TF32) {
        multiply_parts(d, a, 0, y, 0);
    } else {
        // Tensor cores truncate their sums; this addition rounds.
        float part[FRAGS_N][4];
        #pragma unroll
        for (int l = 0; l < FRAGS_N; l++) {
            #pragma unroll
            for (int e = 0; e < 4; e++) part[l][e] = 0;
        }
        multiply_parts(part, a, PARTS - 1, y, 0);
        multiply_parts(part, a, 0, y, PARTS - 1);
        multiply_parts(part, a, 0, y, 0);
        #pragma unroll
        for (int l = 0; l < FRAGS_N; l++) {
            #pragma unroll
            for (int e = 0; e < 4; e++) d[l][e] += part[l][e];
        }
    }
}

DEVICE void multiply_tile(
    float (*acc)[FRAGS_N][4], float (*)[4], const IN* a, const IN* b, int row, int col
) {
    int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    #pragma unroll
    for (int k = 0; k < TILE_K; k += 16) {
        Quad y[FRAGS_N];
        #pragma unroll
        for (int i = 0; i < FRAGS_N; i++) y[i] = quad<TileB>(b, col + column(i, g), k, t);
        #pragma unroll
        for (int i = 0; i < FRAGS_M; i++) {
            Quad x[2];
            x[0] = quad<TileA>(a, row + i * 16 + g, k, t);
            x[1] = quad<TileA>(a, row + i * 16 + g + 8, k, t);
            multiply_quads(acc[i], x, y);
        }
    }
}

#else

// The line, within a fragment of 16 lines (rows of A, columns of B) by 16 along k, of row `line` of the 8 x 8 matrix
// in register `r`; and the start of that matrix along k. The instruction orders A's matrices by lines first, and B's
// by k first.
template <bool OF_B> DEVICE int line_of(int r, int line) { return OF_B ? column(r >> 1, line) : (r & 1) * 8 + line; }
template <bool OF_B> DEVICE int depth_of(int r) { return (OF_B ? r & 1 : r >> 1) * 8; }

template <bool OF_B, bool ALONG_K, typename TILE> DEVICE void fragment(u32* r, const IN* tile, int line, int k) {
    int lane = threadIdx.x & 31, which = lane >> 3, within = lane & 7;
    k += depth_of<OF_B>(which);
    if (ALONG_K) load_matrices(r, tile + TILE::place_of(line + line_of<OF_B>(which, within), k));
    else load_matrices_transposed(r, tile + TILE::place_of(line + line_of<OF_B>(which, 0), k + within));
}

// The same for f32, rounded: a lane holds two adjacent numbers along k of a line.
template <bool OF_B, bool ALONG_K, typename TILE> DEVICE void fragment(u32* r, const f32_t* tile, int line, int k) {
    int lane = threadIdx.x & 31;
    k += (lane & 3) * 2;
    #pragma unroll
    for (int i = 0; i < 4; i++) {
        int at = line + line_of<OF_B>(i, lane >> 2), depth = k + depth_of<OF_B>(i);
        vec<float, 2> x;
        if (ALONG_K) {
            x = load<2>(tile + TILE::place_of(at, depth));
        } else {
            x.at[0] = tile[TILE::place_of(at, depth)];
            x.at[1] = tile[TILE::place_of(at, depth + 1)];
        }
        r[i] = FORM == F16 ? pack_f16(x.at[0], x.at[1]) : pack_bf16(x.at[0], x.at[1]);
    }
}

DEVICE void multiply_fragment(float* d, const u32* a, const u32* b) {
    if (FORM == F16) multiply_f16(d, a, b);
    else multiply_bf16(d, a, b);
}

// Where `sums` is not null, each row of A is also multiplied by ones.
DEVICE void multiply_tile(
    float (*acc)[FRAGS_N][4], float (*sums)[4], const A_TYPE* a, const B_TYPE* b, int row, int col
) {
    const u32 one = FORM == F16 ? 0x3c003c00 : 0x3f803f80, ones[2] = {one, one};
    #pragma unroll
    for (int k = 0; k < TILE_K; k += 16) {
        u32 x[FRAGS_M][4], y[FRAGS_N / 2][4];
        #pragma unroll
        for (int i = 0; i < FRAGS_M; i++) fragment<false, A_ALONG_K, TileA>(x[i], a, row + i * 16, k);
        #pragma unroll
        for (int i = 0; i < FRAGS_N / 2; i++) fragment<true, B_ALONG_K, TileB>(y[i], b, col + i * 16, k);
        #pragma unroll
        for (int i = 0; i < FRAGS_M; i++) {
            #pragma unroll
            for (int l = 0; l < FRAGS_N; l++) multiply_fragment(acc[i][l], x[i], y[l / 2] + l % 2 * 2);
            if (sums) multiply_fragment(sums[i], x[i], ones);
        }
    }
}

#endif

// A's tiles from row `row0` and B's tiles from column `col0`, both starting at k.
template <typename TILE> DEVICE Pieces<TILE, A_COPY> pieces_of_a(const Job& j, const A_TYPE* a, int row0, int k) {
    i64 step = A_ALONG_K ? j.a_row : j.a_col, at = A_ALONG_K ? row0 * step + k : k * step + row0;
    return Pieces<TILE, A_COPY>(a + at, step, (int)j.m - row0);
}
template <typename TILE> DEVICE Pieces<TILE, B_COPY> pieces_of_b(const Job& j, const B_TYPE* b, int col0, int k) {
    i64 step = B_ALONG_K ? j.b_col : j.b_row, at = B_ALONG_K ? col0 * step + k : k * step + col0;
    return Pieces<TILE, B_COPY>(b + at, step, (int)j.n - col0);
}

DEVICE void clear(float (*acc)[FRAGS_N][4]) {
    #pragma unroll
    for (int i = 0; i < FRAGS_M; i++) {
        #pragma unroll
        for (int l = 0; l < FRAGS_N; l++) {
            #pragma unroll
            for (int e = 0; e < 4; e++) acc[i][l][e] = 0;
        }
    }
}

// The start of the warp's part of C, within the block's tile.
DEVICE int warp_row() { return (threadIdx.x >> 5) / WARPS_N * (FRAGS_M * 16); }
DEVICE int warp_col() { return (threadIdx.x >> 5) % WARPS_N * (FRAGS_N * 8); }

// Reads the bias of a lane's columns; `col` is the first.
constexpr int GROUPS = FRAGS_N * 2 / LANE_COLUMNS, GROUP_STEP = LANE_COLUMNS * 4;
DEVICE void lane_biases(const Job& j, int col, float (*bias)[LANE_COLUMNS]) { biases<GROUPS, LANE_COLUMNS, GROUP_STEP>(j, col, bias); }

// Writes a warp's part of C; its first row is `row` and the lane's first column is `col`. The added values of four
// rows are loaded before any of these rows is written.
DEVICE void finish_tile(
    const Job& j, const Place& p, int row, int col, float (*acc)[FRAGS_N][4], const float (*bias)[LANE_COLUMNS]
) {
    constexpr int ROWS = 2 * FRAGS_M, AT_ONCE = ROWS < 4 ? ROWS : 4;
    row += (threadIdx.x & 31) >> 2;
    #pragma unroll
    for (int begin = 0; begin < ROWS; begin += AT_ONCE) {
        float added[AT_ONCE][GROUPS][LANE_COLUMNS];
        #pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            int r = row + (begin + i) * 8;
            if (r < j.m) read_added<GROUPS, LANE_COLUMNS, GROUP_STEP>(j, place_of(j, p, r, col), col, added[i]);
        }
        #pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            int r = row + (begin + i) * 8, of = begin + i;
            float v[GROUPS][LANE_COLUMNS];
            #pragma unroll
            for (int l = 0; l < 2 * FRAGS_N; l++) {
                v[l / LANE_COLUMNS][l % LANE_COLUMNS] = acc[of / 2][l / 2][of % 2 * 2 + l % 2];
            }
            if (r < j.m) finish<GROUPS, LANE_COLUMNS, GROUP_STEP>(j, p, r, col, v, bias, added[i]);
        }
    }
}

// Writes a block's tile.
DEVICE void finish_block(const Job& j, const Place& p, float (*acc)[FRAGS_N][4]) {
    int col = p.tile_n * TILE_N + warp_col() + (threadIdx.x & 3) * LANE_COLUMNS;
    float bias[GROUPS][LANE_COLUMNS];
    lane_biases(j, col, bias);
    finish_tile(j, p, p.tile_m * TILE_M + warp_row(), col, acc, bias);
}
