// Elementwise kernels behind a matrix product, its tail: what a thread has of a row of C passes through them in registers,
// rounded to the dtype of C first. Text that is written for the tail follows. It defines, from the texts of the kernels, each
// in a namespace of its own,
//   Begun      what a thread needs for all of its elements
//   begin      loads it
//   Operands   of N adjacent elements of a row of C, what the tail reads besides them
//   fetch      loads them
//   follow     computes and stores the tail's results, and returns what a norm or another product follows

namespace tail {

// N adjacent elements, of which `there` exist; all or none, if WHOLE.
template <typename T, int N, bool WHOLE> DEVICE vec<T, N> some(u64 address, i64 at, int there) {
    const T* p = reinterpret_cast<const T*>(address) + at;
    vec<T, N> v = {};
    if constexpr (WHOLE) {
        if (there > 0) v = load<N>(p);
    } else {
        #pragma unroll
        for (int i = 0; i < N; i++) if (i < there) v.at[i] = p[i];
    }
    return v;
}

// One element N times.
template <typename T, int N> DEVICE vec<T, N> one(u64 address) {
    T x = *reinterpret_cast<const T*>(address);
    vec<T, N> v;
    #pragma unroll
    for (int i = 0; i < N; i++) v.at[i] = x;
    return v;
}

template <bool WHOLE, typename T, int N> DEVICE void keep(u64 address, i64 at, int there, const vec<T, N>& v) {
    T* p = reinterpret_cast<T*>(address) + at;
    if constexpr (WHOLE) {
        if (there > 0) store<N>(p, v);
    } else {
        #pragma unroll
        for (int i = 0; i < N; i++) if (i < there) p[i] = v.at[i];
    }
}

// The random words of N adjacent elements, the first at `at + step`. If WHOLE, both are multiples of N.
template <int N, bool WHOLE> DEVICE Drawn<N> words(const Stream& stream, i64 at, int step) {
    if constexpr (WHOLE && N % 4 == 0) {
        return draw<N>(stream.from(step / 4), (u64)at);
    } else if constexpr (WHOLE) {
        return draw<N>(stream, (u64)(at + step));
    } else {
        Drawn<N> drawn;
        #pragma unroll
        for (int i = 0; i < N; i++) drawn.at[i] = draw<1>(stream, (u64)(at + step + i)).at[0];
        return drawn;
    }
}

}

