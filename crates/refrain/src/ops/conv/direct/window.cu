// The window of a convolution whose sizes are constants, along the width: STRIP results beside each other, from a multiple of STRIP
// on, and TAPS elements of the window, from a multiple of TAPS on, touch SPAN pixels of the source or, if that would be too
// many, one each. Constants: TRANSPOSED, KERNEL_H, KERNEL_W, STRIDE_H, STRIDE_W, PADDING_H, PADDING_W, DILATION_H, DILATION_W, STRIP, TAPS,
// IN, COMPUTE; VECTORS, whether rows of the source and what a strip touches first are such that pixels can be loaded in fours.

constexpr int THREADS = 256;
static_assert(!TRANSPOSED || STRIP % STRIDE_W == 0 && (TAPS >= KERNEL_W || TAPS * DILATION_W % STRIDE_W == 0), "whole periods");

DEVICE constexpr int floor_of(int a, int b) { return a < 0 ? -((b - 1 - a) / b) : a / b; }

// Whether element k of the window reaches a pixel for result e, and which, from `base` on.
DEVICE constexpr bool reaches(int e, int k) { return !TRANSPOSED || (e + PADDING_W - k * DILATION_W) % STRIDE_W == 0; }
DEVICE constexpr int place_of(int e, int k) {
    return TRANSPOSED ? floor_of(e + PADDING_W - k * DILATION_W, STRIDE_W) : e * STRIDE_W + k * DILATION_W;
}
DEVICE int base_of(int column, int tap) {
    return TRANSPOSED ? column / STRIDE_W - tap * DILATION_W / STRIDE_W : column * STRIDE_W - PADDING_W + tap * DILATION_W;
}

constexpr int LOW = TRANSPOSED ? place_of(0, TAPS - 1) : 0;
constexpr int SPAN = place_of(STRIP - 1, TRANSPOSED ? 0 : TAPS - 1) - LOW + 1;
constexpr bool SLIDES = SPAN <= 3 * (STRIP + TAPS);

// The row of the source that row i of the window reaches for a row of results; below zero, or beyond the source, for none.
DEVICE int row_of(int row, int i) {
    if (!TRANSPOSED) return row * STRIDE_H - PADDING_H + i * DILATION_H;
    const int at = row + PADDING_H - i * DILATION_H;
    return at % STRIDE_H ? -1 : at / STRIDE_H;
}

// A number as it is multiplied.
DEVICE COMPUTE factor(IN x) { return to<COMPUTE>(x); }
template <typename T> DEVICE COMPUTE factor(T x) { return to<COMPUTE>(from<IN>(to<COMPUTE>(x))); }

// How far the first pixel that a strip touches is behind a multiple of four, and pieces of four from there on.
constexpr int FIRST = TRANSPOSED ? LOW : LOW - PADDING_W, AHEAD = FIRST - floor_of(FIRST, 4) * 4, PIECES = (AHEAD + SPAN + 3) / 4;

// The pixels of a row of the source that the strip touches.
template <typename T> struct Line {
    COMPUTE at[SLIDES ? SPAN : 1];
    const T* row;
    int base, width;
    DEVICE Line(const T* row, int base, int width) : row(row), base(base), width(width) {
        if (!SLIDES) return;
#if VECTORS
        const int first = base + LOW - AHEAD;
        #pragma unroll
        for (int piece = 0; piece < PIECES; piece++) {
            // A piece lies in the row, or beside it.
            const int from = first + piece * 4;
            const bool inside = (u32)from < (u32)width;
            vec<T, 4> pixels;
            if (inside) pixels = load<4>(row + from);
            #pragma unroll
            for (int i = 0; i < 4; i++) {
                const int to = piece * 4 + i - AHEAD;
                if (to >= 0 && to < SPAN) at[to] = inside ? factor(pixels.at[i]) : (COMPUTE)0;
            }
        }
#else
        #pragma unroll
        for (int i = 0; i < SPAN; i++) at[i] = pixel(LOW + i);
#endif
    }
    DEVICE COMPUTE pixel(int i) const { return (u32)(base + i) < (u32)width ? factor(row[base + i]) : (COMPUTE)0; }
    DEVICE COMPUTE operator()(int e, int k) const { return SLIDES ? at[place_of(e, k) - LOW] : pixel(place_of(e, k)); }
};
