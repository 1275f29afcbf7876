// Where the numbers lie that a convolution's sums run over: k = (tap, channel) of the source image, where a tap is an element of the
// window. Constants: TRANSPOSED.

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
