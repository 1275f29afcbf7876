// Windows that move over images.

// The place in the image of element k of window i along an axis; beyond the image in the padding.
DEVICE i64 place_of(const WindowsAt& w, int axis, i64 i, i64 k) {
    return i * w.stride[axis] + k * w.dilation[axis] - w.padding[axis];
}
DEVICE bool is_inside(const WindowsAt& w, int axis, i64 at) { return (u64)at < (u64)w.size[axis]; }

// The first window that may reach a place, and the last one.
DEVICE i64 first_window(const WindowsAt& w, int axis, i64 at) {
    const i64 behind = at + w.padding[axis] - w.dilation[axis] * (w.kernel[axis] - 1);
    return behind <= 0 ? 0 : (behind + w.stride[axis] - 1) / w.stride[axis];
}
DEVICE i64 last_window(const WindowsAt& w, int axis, i64 at) {
    const i64 last = (at + w.padding[axis]) / w.stride[axis];
    return last < w.count[axis] ? last : w.count[axis] - 1;
}

// Which element of window i a place is, or -1 if it is between two of them.
DEVICE i64 element_of(const WindowsAt& w, int axis, i64 i, i64 at) {
    const i64 behind = at + w.padding[axis] - i * w.stride[axis], k = behind / w.dilation[axis];
    return k * w.dilation[axis] == behind ? k : -1;
}
