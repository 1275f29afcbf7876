// What a kernel of the user's own gets for an operand or a result, as torch::PackedTensorAccessor64 in PyTorch. Strides
// count elements.
template <typename T> struct View {
    T* data;
    i64 numel;
    i64 rank;
    const i64* sizes;
    const i64* strides;

    // Element `i` of contiguous memory.
    DEVICE T& operator[](i64 i) const { return data[i]; }

    // Element `i` in row-major order, whatever the strides are.
    DEVICE T& at(i64 i) const {
        i64 place = 0;
        for (i64 axis = rank - 1; axis > 0; axis--) {
            place += i % sizes[axis] * strides[axis];
            i /= sizes[axis];
        }
        return data[rank > 0 ? place + i * strides[0] : 0];
    }
};

template <typename T> DEVICE View<T> view(const OperandArgs& operand) {
    return View<T>{reinterpret_cast<T*>(operand.data), operand.numel, operand.rank, operand.sizes, operand.strides};
}

