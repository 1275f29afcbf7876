// Windows that move over images. Constants, of heights (0) and widths (1): KERNEL_0, KERNEL_1; STRIDE_0, STRIDE_1; PADDING_0, PADDING_1;
// PLACE, the type of a place, which is signed.

template <int AXIS> struct window {
    static constexpr PLACE KERNEL = AXIS == 0 ? KERNEL_0 : KERNEL_1;
    static constexpr PLACE STRIDE = AXIS == 0 ? STRIDE_0 : STRIDE_1;
    static constexpr PLACE PADDING = AXIS == 0 ? PADDING_0 : PADDING_1;
    // Windows that may reach a place, at most.
    static constexpr PLACE REACHING = (KERNEL + STRIDE - 1) / STRIDE;

    // Where window i begins; before the image in the padding.
    static DEVICE PLACE begin(PLACE i) { return i * STRIDE - PADDING; }
    // The first window that may reach a place, and the last of `count`.
    static DEVICE PLACE first(PLACE at) {
        const PLACE behind = at + PADDING - (KERNEL - 1);
        return behind <= 0 ? 0 : (behind + STRIDE - 1) / STRIDE;
    }
    static DEVICE PLACE last(PLACE at, PLACE count) { return min((at + PADDING) / STRIDE, count - 1); }
    // How many elements of window i lie in an image of `size`.
    static DEVICE PLACE length(PLACE i, PLACE size) {
        return min(begin(i) + KERNEL, size) - max(begin(i), (PLACE)0);
    }
};

// As many rounds of a loop of N as are worth their text.
#define ROUNDS(N) ((N) < 32 ? (int)(N) : 32)
