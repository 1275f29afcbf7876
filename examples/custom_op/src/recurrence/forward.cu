// A thread for each sequence. Threads beside one another have channels beside one another, so they load and store
// together.
template <typename T>
__device__ void linear_recurrence(View<const T> gate, View<const T> x, View<T> y, float start) {
    typedef typename arithmetic<T>::type C;
    i64 channels = y.sizes[2];
    i64 sequence = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (sequence >= y.sizes[0] * channels) return;
    i64 b = sequence / channels, c = sequence % channels;
    const T* gates = gate.data + b * gate.strides[0] + c * gate.strides[2];
    const T* xs = x.data + b * x.strides[0] + c * x.strides[2];
    T* ys = y.data + b * y.strides[0] + c * y.strides[2];
    C state = start;
    for (i64 t = 0; t < y.sizes[1]; t++) {
        state = to<C>(gates[t * gate.strides[1]]) * state + to<C>(xs[t * x.strides[1]]);
        ys[t * y.strides[1]] = from<T>(state);
    }
}
