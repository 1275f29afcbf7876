// The loop of elementwise kernels. The operation's text before this one defines
//   DEVICE COMPUTE apply(const COMPUTE* x, const double* s)
// of the operands' elements and the scalars. Constants: COMPUTE, OUT, IN0.. (dtypes), INPUTS, RANK,
// VEC (elements of the last axis that one thread takes at once; 1 for any strides), DENSE (bit i: operand i
// steps by 1 along the last axis, else by 0; where VEC > 1), INDEX (type of offsets), ADD.

template <int K> struct input;
#if INPUTS > 0
template <> struct input<0> { typedef IN0 type; };
#endif
#if INPUTS > 1
template <> struct input<1> { typedef IN1 type; };
#endif
#if INPUTS > 2
template <> struct input<2> { typedef IN2 type; };
#endif
#if INPUTS > 3
template <> struct input<3> { typedef IN3 type; };
#endif
#if INPUTS > 4
template <> struct input<4> { typedef IN4 type; };
#endif

template <int K> DEVICE void fetch(COMPUTE (*x)[INPUTS + 1], const Elements& e, const INDEX* at, bool vector) {
    typedef typename input<K>::type T;
    INDEX offset = 0;
    #pragma unroll
    for (int d = 0; d < RANK; d++) offset += at[d] * (INDEX)e.strides[K][d];
    const T* p = reinterpret_cast<const T*>(e.x[K]) + offset;
    if (VEC > 1 && (DENSE >> K & 1) && vector) {
        vec<COMPUTE, VEC> v = to_all<COMPUTE>(load<VEC>(p));
        #pragma unroll
        for (int i = 0; i < VEC; i++) x[i][K] = v.at[i];
    } else {
        COMPUTE v = to<COMPUTE>(*p);
        #pragma unroll
        for (int i = 0; i < VEC; i++) x[i][K] = v;
    }
}

template <bool VECTOR> DEVICE void elements(const Elements& e, INDEX first) {
    INDEX at[RANK];
    INDEX rest = first;
    #pragma unroll
    for (int d = RANK - 1; d > 0; d--) {
        INDEX size = (INDEX)e.shape[d];
        INDEX q = rest / size;
        at[d] = rest - q * size;
        rest = q;
    }
    at[0] = rest;
    COMPUTE x[VEC][INPUTS + 1];
#if INPUTS > 0
    fetch<0>(x, e, at, VECTOR);
#endif
#if INPUTS > 1
    fetch<1>(x, e, at, VECTOR);
#endif
#if INPUTS > 2
    fetch<2>(x, e, at, VECTOR);
#endif
#if INPUTS > 3
    fetch<3>(x, e, at, VECTOR);
#endif
#if INPUTS > 4
    fetch<4>(x, e, at, VECTOR);
#endif
    INDEX offset = 0;
    #pragma unroll
    for (int d = 0; d < RANK; d++) offset += at[d] * (INDEX)e.y_strides[d];
    OUT* y = reinterpret_cast<OUT*>(e.y) + offset;
    if (VECTOR) {
        vec<OUT, VEC> v;
        if (ADD) v = load<VEC>(y);
        COMPUTE r[VEC];
        #pragma unroll
        for (int i = 0; i < VEC; i++) {
            r[i] = apply(x[i], e.s);
            if (ADD) r[i] = (COMPUTE)(to<COMPUTE>(v.at[i]) + r[i]);
        }
        store<VEC>(y, round_all<OUT, VEC>(r));
    } else {
        put<ADD>(y, apply(x[0], e.s));
    }
}

KERNEL(elementwise, Elements, e) {
    INDEX n = (INDEX)e.n, step = (INDEX)gridDim.x * blockDim.x;
    INDEX thread = (INDEX)blockIdx.x * blockDim.x + threadIdx.x;
    for (INDEX i = thread; i < n / VEC; i += step) elements<(VEC > 1)>(e, i * VEC);
    // The rest, if there is only one axis.
    if (VEC > 1 && thread < n % VEC) elements<false>(e, n / VEC * VEC + thread);
}
