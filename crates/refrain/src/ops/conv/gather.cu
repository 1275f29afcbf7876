// Convolutions as matrix products on tensor cores: where the numbers of the operands lie, and their tiles in shared memory.
// A result pixel's sums run over the numbers k = (tap, channel) of the source image, where a tap is an element of the window.
// Constants: X_TYPE (what is in memory), TRANSPOSED, RUN (so many numbers from a multiple of it on have one tap).

// The taps along an axis that reach source pixels, for the result pixels first, first + apart, ..: tap t, the (first_tap + t *
// tap_apart)-th element of the window, of the u-th of them reaches the source's pixel u * scale + from + t * by. A convolution's
// result pixels all have the same taps. Those of a transposed convolution with a stride above 1 have `stride` different kinds.
struct Taps { int first, apart, first_tap, tap_apart, count, scale, from, by; };

DEVICE Taps taps_along(const ConvSizes& s, int axis, int phase) {
    const int stride = (int)s.stride[axis], dilation = (int)s.dilation[axis];
    const int kernel = (int)s.kernel[axis], padding = (int)s.padding[axis];
    if (!TRANSPOSED) return Taps{0, 1, 0, 1, kernel, stride, -padding, dilation};
    int first = 0, apart = 1;
    while (first < kernel && (phase + padding - first * dilation) % stride) first++;
    while (apart * dilation % stride) apart++;
    return Taps{phase, stride, first, apart, first < kernel ? (kernel - first - 1) / apart + 1 : 0, 1,
                (phase + padding - first * dilation) / stride, -(apart * dilation / stride)};
}

// The taps of a phase: as many as the stride is along each axis of a transposed convolution, otherwise one.
struct Phase {
    Taps h, w;
    DEVICE Phase(const ConvSizes& s, int phase)
        : h(taps_along(s, 0, TRANSPOSED ? phase / (int)s.stride[1] : 0)),
          w(taps_along(s, 1, TRANSPOSED ? phase % (int)s.stride[1] : 0)) {}
    // How many numbers a sum has.
    DEVICE int depth(const ConvSizes& s) const { return (int)s.from_channels * h.count * w.count; }
};

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

// A number as it is multiplied.
DEVICE IN factor(COMPUTE x) {
#if FORM == TF32
    return __uint_as_float(round_tf32(x));
#else
    return from<IN>(x);
#endif
}

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
