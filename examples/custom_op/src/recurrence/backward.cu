// A thread for each sequence, backwards in time. All operands are contiguous.
template <typename T>
__device__ void linear_recurrence_backward(
    View<const T> gate, View<const T> y, View<const T> dy, View<T> dgate, View<T> dx, float start
) {
    typedef typename arithmetic<T>::type C;
    i64 time = dx.sizes[1], channels = dx.sizes[2];
    i64 sequence = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    if (sequence >= dx.sizes[0] * channels) return;
    i64 first = sequence / channels * time * channels + sequence % channels;
    // What the next time step adds to the gradient of this one.
    C later = 0;
    for (i64 t = time - 1; t >= 0; t--) {
        i64 at = first + t * channels;
        C before = t > 0 ? to<C>(y[at - channels]) : (C)start;
        C d = to<C>(dy[at]) + later;
        dx[at] = from<T>(d);
        dgate[at] = from<T>(d * before);
        later = d * to<C>(gate[at]);
    }
}
