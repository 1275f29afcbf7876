// A step of stochastic gradient descent. Constants: those of segments, MOMENTUM (whether there is any).

struct Coefficients { COMPUTE decay, rate; };

struct Sgd {
    IN *p, *g, *b;
    double rate, weight_decay;
    COMPUTE scale, momentum;

    DEVICE Coefficients of(const double* settings) const {
        return {(COMPUTE)(weight_decay * settings[0]), (COMPUTE)(rate * settings[1])};
    }

    template <int N> DEVICE void update(i64 at, const Coefficients& c) const {
        COMPUTE parameter[N], velocity[N], previous[N];
        fetch<N>(parameter, p + at);
        fetch<N>(velocity, g + at);
        if (MOMENTUM) fetch<N>(previous, b + at);
        #pragma unroll
        for (int i = 0; i < N; i++) {
            velocity[i] = velocity[i] * scale + c.decay * parameter[i];
            if (MOMENTUM) velocity[i] += momentum * previous[i];
            parameter[i] -= c.rate * velocity[i];
        }
        put_all<N>(p + at, parameter);
        put_zeros<N>(g + at);
        if (MOMENTUM) put_all<N>(b + at, velocity);
    }

    template <int N> DEVICE void clear(i64 at) const { put_zeros<N>(g + at); }
};

KERNEL sgd(IN* p, IN* g, IN* b, const double* rate, const double* scale, const i64* ranges, const double* settings,
           double momentum, double decay, i64 n, i64 segments) {
    Sgd o;
    o.p = p;
    o.g = g;
    o.b = b;
    o.rate = *rate;
    o.weight_decay = decay;
    o.scale = (COMPUTE)*scale;
    o.momentum = (COMPUTE)momentum;
    sweep(o, Table{ranges, settings, segments}, n);
}
