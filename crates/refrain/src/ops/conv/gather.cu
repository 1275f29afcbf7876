// Convolutions as matrix products on tensor cores: the numbers of the operands are gathered where they lie (taps.cu), into tiles in shared
// memory. Constants: X_TYPE (what is in memory), RUN (so many numbers from a multiple of it on have one tap).

constexpr int OUTSIDE = -(1 << 30);

// Where a run of the sums' numbers begins, from a pixel's origin: in elements, in rows and in columns.
struct __align__(16) Step { int elements, rows, columns, unused; };

DEVICE Step step_to(const ConvSizes& s, const Phase& phase, int k) {
    if (k >= phase.depth(s)) return Step{0, OUTSIDE, OUTSIDE, 0};
    const int tap = k / (int)s.from_channels, channel = k - tap * (int)s.from_channels;
    const int i = tap / phase.w.count, row = i * phase.h.by, column = (tap - i * phase.w.count) * phase.w.by;
    return Step{channel * (int)(s.from[0] * s.from[1]) + row * (int)s.from[1] + column, row, column, 0};
}

// The origin of a result pixel in the source.
struct Origin {
    const X_TYPE* at;
    int row, column;
    // The pixel (u, v) of a phase; `group` counts the groups of all images.
    DEVICE Origin(const ConvSizes& s, const Phase& phase, const X_TYPE* x, u32 group, int u, int v)
        : row(u * phase.h.scale + phase.h.from), column(v * phase.w.scale + phase.w.from) {
        at = x + ((i64)group * s.from_channels * s.from[0] + row) * s.from[1] + column;
    }
    DEVICE Origin() : at(0), row(OUTSIDE), column(OUTSIDE) {}
    // Loads a run: channels of one tap.
    DEVICE void load(const ConvSizes& s, const Step& step, COMPUTE* run) const {
        const bool inside = (u32)(row + step.rows) < (u32)s.from[0] && (u32)(column + step.columns) < (u32)s.from[1];
        const X_TYPE* from = at + step.elements;
        const i64 plane = s.from[0] * s.from[1];
        #pragma unroll
        for (int i = 0; i < RUN; i++) run[i] = inside ? to<COMPUTE>(from[i * plane]) : (COMPUTE)0;
    }
};

// A tile in shared memory: lines in parts of up to 64 bytes, the same part of all lines together. Pieces of 16 bytes within a
// part are permuted, so that there are no bank conflicts when fragments are loaded, nor when one piece of adjacent lines is
// stored.
template <bool ALONG_K, int OUTER> struct Gathered {
    typedef IN Number;
    static constexpr bool IS_TF32 = FORM == TF32;
    static constexpr int LINES = ALONG_K ? OUTER : TILE_K, LINE = ALONG_K ? TILE_K : OUTER;
    static constexpr int PIECE = 16 / (int)sizeof(IN), PIECES = LINE / PIECE;
    static constexpr int PART = LINE < 4 * PIECE ? LINE : 4 * PIECE;
    static constexpr int BYTES = LINES * LINE * (int)sizeof(IN);
    static DEVICE int place(int line, int at) {
        const int turn = ((line >> 1 ^ line >> 3) & 1) << 1 | (line >> 2 & 1);
        return (at / PART * LINES + line) * PART + ((at % PART / PIECE ^ turn) & (PART / PIECE - 1)) * PIECE + at % PIECE;
    }
    static DEVICE int place_of(int outer, int k) { return ALONG_K ? place(outer, k) : place(k, outer); }
    // Stores a piece of a line.
    static DEVICE void put(IN* tile, int line, int piece, const COMPUTE* x) {
        vec<IN, PIECE> v;
        #pragma unroll
        for (int i = 0; i < PIECE; i++) v.at[i] = factor(x[i]);
        store<PIECE>(tile + place(line, piece * PIECE), v);
    }
};
typedef Gathered<A_ALONG_K, TILE_M> TileA;
typedef Gathered<B_ALONG_K, TILE_N> TileB;
constexpr int PIECE = TileA::PIECE;
constexpr int STAGE_BYTES = TileA::BYTES + TileB::BYTES;
static_assert(PIECE % RUN == 0, "a piece has whole runs");
// As many blocks as share a multiprocessor's registers.
constexpr int AT_ONCE = FORM == F64 ? 1 : 2;
