// Tiles of operands in shared memory, in the order that they have in memory, and their products on tensor cores.
// Constants, beside those of common.cu:
//   FORM         one of those below
//   A_ALONG_K    A's elements along k follow each other in memory; else those along m
//   B_ALONG_K    B's elements along k follow each other in memory; else those along n
//   A_COPY, B_COPY   elements that are copied at once
//   WARPS_M, WARPS_N, FRAGS_M, FRAGS_N   warps of a block; 16 x 8 fragments of a warp's part of C (FRAGS_N even)
//   PANEL        tiles along k, all of which a block keeps of B; 0 where B's tiles pass by with A's
//   DEALT        whether the panel has the operands' dtype and its columns the order that they are dealt in

// f16 and bf16, to which f32 is rounded; f32 rounded to TF32, f32 as the sum of two of TF32.
#define HALVES 0
#define BRAINS 1
#define TF32 2
#define SPLIT 3

#define WIDE (FORM == TF32 || FORM == SPLIT)

constexpr int BLOCK_THREADS = WARPS_M * WARPS_N * 32;
constexpr int TILE_M = WARPS_M * FRAGS_M * 16, TILE_N = WARPS_N * FRAGS_N * 8;
constexpr bool BOTH_ALONG_K = A_ALONG_K && B_ALONG_K;
constexpr int SHARED = 49152;

// A tile of an operand in shared memory: elements from one of its rows to the next, so that the lanes of a warp meet in
// no bank, and its bytes.
template <typename T, bool ALONG_K, int OUTER, int DEPTH> struct Tile {
    static constexpr bool ROUNDED = !WIDE && sizeof(T) == 4;
    static constexpr int K_PITCH = !WIDE ? DEPTH + 8 : BOTH_ALONG_K ? 16 : 20;
    static constexpr int PITCH = ALONG_K ? K_PITCH : OUTER + (ROUNDED ? 4 : 8);
    static constexpr int BYTES = PITCH * (ALONG_K ? OUTER : DEPTH) * (int)sizeof(T);
};

// Columns of C are dealt to fragments in pairs so that a lane holds four neighbours of a row, two in each fragment of a
// pair. Not so where B's fragments are turned while they are loaded, which takes eight neighbours each.
constexpr bool PAIRED = B_ALONG_K || sizeof(B_TYPE) == 4 || DEALT;
constexpr int TOGETHER = PAIRED ? 4 : 2;

// The column, within a warp's part of C, of line `line` of fragment `l`.
DEVICE int column(int l, int line) {
    return PAIRED ? (l >> 1) * 16 + (line >> 1) * 4 + (l & 1) * 2 + (line & 1) : l * 8 + line;
}

template <int DEPTH> struct Tiles {
    typedef Tile<A_TYPE, A_ALONG_K, TILE_M, DEPTH> A;
    typedef Tile<B_TYPE, B_ALONG_K, TILE_N, DEPTH> B;
    static constexpr int STAGES = SHARED / (A::BYTES + B::BYTES);
};

// Tiles are shallower where f32 would leave too little room for copies ahead.
constexpr bool SAME = sizeof(A_TYPE) == sizeof(IN) && sizeof(B_TYPE) == sizeof(IN);
constexpr int TILE_K = !WIDE && (PANEL > 0 || SAME || Tiles<32>::STAGES >= 3) ? 32 : 16;
constexpr int A_PITCH = Tiles<TILE_K>::A::PITCH, A_BYTES = Tiles<TILE_K>::A::BYTES;
constexpr int B_PITCH = Tiles<TILE_K>::B::PITCH, B_BYTES = Tiles<TILE_K>::B::BYTES;

// Copies a tile whose rows run along memory; of what lies beyond `rows` and `cols` it makes zeros.
template <int ROWS, int COLS, int PITCH, int COPY, typename T>
DEVICE void fetch(T* to, const T* operand, i64 first, i64 step, int rows, int cols) {
    constexpr int PER_ROW = COLS / COPY, COUNT = ROWS * PER_ROW;
    #pragma unroll
    for (int s = 0; s < (COUNT + BLOCK_THREADS - 1) / BLOCK_THREADS; s++) {
        int i = s * BLOCK_THREADS + threadIdx.x;
        if (COUNT % BLOCK_THREADS == 0 || i < COUNT) {
            int row = i / PER_ROW, col = i % PER_ROW * COPY;
            int there = row < rows ? min(max(cols - col, 0), COPY) : 0;
            const T* from = there > 0 ? operand + (first + row * step + col) : operand;
            copy_async<COPY * (int)sizeof(T)>(to + row * PITCH + col, from, there * (int)sizeof(T));
        }
    }
}

#if WIDE

// What a lane holds of four numbers of a row: TF32 numbers, or higher and lower parts of that kind.
constexpr int PARTS = FORM == SPLIT ? 2 : 1;
struct Quad { u32 at[PARTS][4]; };

// The four numbers along k that a lane holds of a row of a 16 deep fragment. Which four does not matter as long as
// it is the same for A and B: neighbours where both run along k, every fourth else.
template <bool ALONG_K, int PITCH> DEVICE Quad quad(const IN* tile, int row, int k, int lane) {
    float x[4];
    if (BOTH_ALONG_K) {
        vec<float, 4> v = load<4>(tile + row * PITCH + k + 4 * lane);
        #pragma unroll
        for (int i = 0; i < 4; i++) x[i] = v.at[i];
    } else {
        #pragma unroll
        for (int i = 0; i < 4; i++) {
            int at = k + lane + 4 * i;
            x[i] = ALONG_K ? tile[row * PITCH + at] : tile[at * PITCH + row];
        }
    }
    Quad q;
    #pragma unroll
    for (int i = 0; i < 4; i++) {
        if (FORM == SPLIT) split_tf32(x[i], q.at[0][i], q.at[PARTS - 1][i]);
        else q.at[0][i] = round_tf32(x[i]);
    }
    return q;
}

// d += a b, 16 x 8 x 16, of those parts of A's upper and lower rows and of B.
DEVICE void multiply_parts(float* d, const Quad& upper, const Quad& lower, int a, const Quad& y, int b) {
    const u32 *u = upper.at[a], *l = lower.at[a], *z = y.at[b];
    multiply_tf32(d, u[0], l[0], u[1], l[1], z[0], z[1]);
    multiply_tf32(d, u[2], l[2], u[3], l[3], z[2], z[3]);
}

DEVICE void multiply_quads(float* d, const Quad& upper, const Quad& lower, const Quad& y) {
    if (FORM == TF32) {
        multiply_parts(d, upper, lower, 0, y, 0);
    } else {
        // Tensor cores cut their sums off; what is added up here is rounded.
        float part[4] = {0, 0, 0, 0};
        multiply_parts(part, upper, lower, PARTS - 1, y, 0);
        multiply_parts(part, upper, lower, 0, y, PARTS - 1);
        multiply_parts(part, upper, lower, 0, y, 0);
        #pragma unroll
        for (int e = 0; e < 4; e++) d[e] += part[e];
    }
}

DEVICE void multiply_tile(float (*acc)[FRAGS_N][4], const IN* a, const IN* b, int row, int col) {
    int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    #pragma unroll
    for (int k = 0; k < TILE_K; k += 16) {
        Quad x[FRAGS_M][2], y[FRAGS_N];
        #pragma unroll
        for (int i = 0; i < FRAGS_M; i++) {
            x[i][0] = quad<A_ALONG_K, A_PITCH>(a, row + i * 16 + g, k, t);
            x[i][1] = quad<A_ALONG_K, A_PITCH>(a, row + i * 16 + g + 8, k, t);
        }
        #pragma unroll
        for (int i = 0; i < FRAGS_N; i++) y[i] = quad<B_ALONG_K, B_PITCH>(b, col + column(i, g), k, t);
        #pragma unroll
        for (int i = 0; i < FRAGS_M; i++) {
            #pragma unroll
            for (int l = 0; l < FRAGS_N; l++) multiply_quads(acc[i][l], x[i][0], x[i][1], y[l]);
        }
    }
}

#else

// Line `line` of the 8 x 8 numbers that register `r` of a fragment of 16 lines (rows of A, columns of B) by 16 along k
// holds a lane's share of, and where they begin along k: the instruction counts those of A by lines first, those of B
// along k first.
template <bool OF_B> DEVICE int line_of(int r, int line) {
    // Where the panel is dealt, columns lie in that order already.
    return OF_B ? (DEALT ? (r >> 1) * 8 + line : column(r >> 1, line)) : (r & 1) * 8 + line;
}
template <bool OF_B> DEVICE int depth_of(int r) { return (OF_B ? r & 1 : r >> 1) * 8; }

template <bool OF_B, bool ALONG_K, int PITCH> DEVICE void fragment(u32* r, const IN* tile, int line, int k) {
    int lane = threadIdx.x & 31, which = lane >> 3, within = lane & 7;
    k += depth_of<OF_B>(which);
    if (ALONG_K) load_matrices(r, tile + (line + line_of<OF_B>(which, within)) * PITCH + k);
    else load_matrices_transposed(r, tile + (k + within) * PITCH + line + line_of<OF_B>(which, 0));
}

// The same of f32, rounded: a lane holds two neighbours along k of a line.
template <bool OF_B, bool ALONG_K, int PITCH> DEVICE void fragment(u32* r, const f32_t* tile, int line, int k) {
    int lane = threadIdx.x & 31;
    k += (lane & 3) * 2;
    #pragma unroll
    for (int i = 0; i < 4; i++) {
        int at = line + line_of<OF_B>(i, lane >> 2), depth = k + depth_of<OF_B>(i);
        vec<float, 2> x;
        if (ALONG_K) {
            x = load<2>(tile + at * PITCH + depth);
        } else {
            x.at[0] = tile[depth * PITCH + at];
            x.at[1] = tile[(depth + 1) * PITCH + at];
        }
        r[i] = FORM == HALVES ? pack_halves(x.at[0], x.at[1]) : pack_brains(x.at[0], x.at[1]);
    }
}

template <bool B_LINES_ALONG_K, int B_LINE, typename B>
DEVICE void multiply_tiles(float (*acc)[FRAGS_N][4], const A_TYPE* a, const B* b, int row, int col) {
    #pragma unroll
    for (int k = 0; k < TILE_K; k += 16) {
        u32 x[FRAGS_M][4], y[FRAGS_N / 2][4];
        #pragma unroll
        for (int i = 0; i < FRAGS_M; i++) fragment<false, A_ALONG_K, A_PITCH>(x[i], a, row + i * 16, k);
        #pragma unroll
        for (int i = 0; i < FRAGS_N / 2; i++) fragment<true, B_LINES_ALONG_K, B_LINE>(y[i], b, col + i * 16, k);
        #pragma unroll
        for (int i = 0; i < FRAGS_M; i++) {
            #pragma unroll
            for (int l = 0; l < FRAGS_N; l++) {
                if (FORM == HALVES) multiply_halves(acc[i][l], x[i], y[l / 2] + l % 2 * 2);
                else multiply_brains(acc[i][l], x[i], y[l / 2] + l % 2 * 2);
            }
        }
    }
}

DEVICE void multiply_tile(float (*acc)[FRAGS_N][4], const A_TYPE* a, const B_TYPE* b, int row, int col) {
    multiply_tiles<B_ALONG_K, B_PITCH>(acc, a, b, row, col);
}

#endif

// A tile of A from row `row0` and of B from column `col0`, both from k; zeros beyond their ends.
DEVICE void fetch_a(const Job& j, A_TYPE* to, const A_TYPE* a, int row0, int k, int end) {
    int m = (int)j.m;
    if (A_ALONG_K) fetch<TILE_M, TILE_K, A_PITCH, A_COPY>(to, a, row0 * j.a_row + k, j.a_row, m - row0, end - k);
    else fetch<TILE_K, TILE_M, A_PITCH, A_COPY>(to, a, k * j.a_col + row0, j.a_col, end - k, m - row0);
}
DEVICE void fetch_b(const Job& j, B_TYPE* to, const B_TYPE* b, int col0, int k, int end) {
    int n = (int)j.n;
    if (B_ALONG_K) fetch<TILE_N, TILE_K, B_PITCH, B_COPY>(to, b, col0 * j.b_col + k, j.b_col, n - col0, end - k);
    else fetch<TILE_K, TILE_N, B_PITCH, B_COPY>(to, b, k * j.b_row + col0, j.b_row, end - k, n - col0);
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

// Where the part of C begins that a warp computes, within its block's.
DEVICE int warp_row() { return (threadIdx.x >> 5) / WARPS_N * (FRAGS_M * 16); }
DEVICE int warp_col() { return (threadIdx.x >> 5) % WARPS_N * (FRAGS_N * 8); }

// The bias of a lane's columns, of which `col` is the first.
constexpr int GROUPS = FRAGS_N * 2 / TOGETHER, GROUP_STEP = TOGETHER * 4;
DEVICE void lane_biases(const Job& j, int col, float (*bias)[TOGETHER]) { biases<GROUPS, TOGETHER, GROUP_STEP>(j, col, bias); }

// Takes a warp's part of C, whose first row is `row` and whose lane's first column is `col`. What is added to four rows
// is on its way before any of them is written.
DEVICE void finish_tile(
    const Job& j, const Place& p, int row, int col, float (*acc)[FRAGS_N][4], const float (*bias)[TOGETHER]
) {
    constexpr int ROWS = 2 * FRAGS_M, AT_ONCE = ROWS < 4 ? ROWS : 4;
    row += (threadIdx.x & 31) >> 2;
    #pragma unroll
    for (int begin = 0; begin < ROWS; begin += AT_ONCE) {
        float added[AT_ONCE][GROUPS][TOGETHER];
        #pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            int r = row + (begin + i) * 8;
            if (r < j.m) read_added<GROUPS, TOGETHER, GROUP_STEP>(j, place_of(j, p, r, col), col, added[i]);
        }
        #pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            int r = row + (begin + i) * 8, of = begin + i;
            float v[GROUPS][TOGETHER];
            #pragma unroll
            for (int l = 0; l < 2 * FRAGS_N; l++) {
                v[l / TOGETHER][l % TOGETHER] = acc[of / 2][l / 2][of % 2 * 2 + l % 2];
            }
            if (r < j.m) finish<GROUPS, TOGETHER, GROUP_STEP>(j, p, r, col, v, bias, added[i]);
        }
    }
}
