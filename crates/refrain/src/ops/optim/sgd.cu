// A step of stochastic gradient descent. Constants: those of segments, MOMENTUM (whether there is momentum).

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

KERNEL(sgd, SgdArgs, p) {
    Sgd o;
    o.p = p.parameters;
    o.g = p.gradients;
    o.b = p.velocities;
    o.rate = *p.rate;
    o.weight_decay = p.weight_decay;
    o.scale = (COMPUTE)*p.scale;
    o.momentum = (COMPUTE)p.momentum;
    sweep(o, p.table, skips(p.scale));
}
