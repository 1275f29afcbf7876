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

// The faults that a kernel can report. The last one stands for all that are not declared.
struct Faults {
    const Reporter* reporters;
    int last;

    // Reports fault `k` with the numbers of its message. The first report of a launch counts.
    DEVICE void report(int k, i64 a = 0, i64 b = 0) const {
        ::report(reporters[(u32)k < (u32)last ? k : last], a, b);
    }
};

template <int N> DEVICE Faults faults_of(const Reporter (&reporters)[N]) { return Faults{reporters, N - 1}; }
