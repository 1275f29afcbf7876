// Elementwise kernels behind a matrix product, its tail: what a thread has of a row of C passes through them in registers,
// rounded to the dtype of C first. Text that is written for the tail follows. It defines, from the texts of the kernels, each
// in a namespace of its own,
//   Operands   of N adjacent elements of a row of C, what the tail reads besides them
//   fetch      loads them
//   follow     computes and stores the tail's results

namespace tail {

// N adjacent elements, of which `there` exist; all, if WHOLE.
template <typename T, int N, bool WHOLE> DEVICE vec<T, N> some(u64 address, i64 at, int there) {
    const T* p = reinterpret_cast<const T*>(address) + at;
    if (WHOLE) return load<N>(p);
    vec<T, N> v = {};
    #pragma unroll
    for (int i = 0; i < N; i++) if (i < there) v.at[i] = p[i];
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
    if (WHOLE) {
        store<N>(p, v);
        return;
    }
    #pragma unroll
    for (int i = 0; i < N; i++) if (i < there) p[i] = v.at[i];
}

// The random words of N adjacent elements. If WHOLE, the first is a multiple of N.
template <int N, bool WHOLE> DEVICE Drawn<N> words(u64 state, u64 offset, i64 first) {
    if (WHOLE) return draw<N>(state, offset, (u64)first);
    Drawn<N> drawn;
    #pragma unroll
    for (int i = 0; i < N; i++) drawn.at[i] = draw<1>(state, offset, (u64)(first + i)).at[0];
    return drawn;
}

}

