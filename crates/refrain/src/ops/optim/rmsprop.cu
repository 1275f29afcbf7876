// A step of RMSprop. Constants: those of segments, CENTERED (whether the gradient is divided by its standard deviation), MOMENTUM
// (whether there is momentum).

struct Coefficients { COMPUTE decay, rate; };

struct RmsProp {
    IN *p, *g, *v, *a, *b;
    double rate, weight_decay;
    COMPUTE scale, alpha, one_minus_alpha, eps, momentum;

    DEVICE Coefficients of(const double* settings) const {
        return {(COMPUTE)(weight_decay * settings[0]), (COMPUTE)(rate * settings[1])};
    }

    template <int N> DEVICE void update(i64 at, const Coefficients& c) const {
        COMPUTE parameter[N], gradient[N], square[N], mean[N], velocity[N];
        fetch<N>(parameter, p + at);
        fetch<N>(gradient, g + at);
        fetch<N>(square, v + at);
        if (CENTERED) fetch<N>(mean, a + at);
        if (MOMENTUM) fetch<N>(velocity, b + at);
        #pragma unroll
        for (int i = 0; i < N; i++) {
            COMPUTE d = gradient[i] * scale + c.decay * parameter[i];
            square[i] = alpha * square[i] + one_minus_alpha * d * d;
            COMPUTE variance = square[i];
            if (CENTERED) {
                mean[i] += one_minus_alpha * (d - mean[i]);
                variance = square[i] - mean[i] * mean[i];
                // Rounding can make it negative. NaN stays NaN.
                if (variance < (COMPUTE)0) variance = 0;
            }
            COMPUTE change = d / (sqrt_(variance) + eps);
            if (MOMENTUM) change = velocity[i] = momentum * velocity[i] + change;
            parameter[i] -= c.rate * change;
        }
        put_all<N>(p + at, parameter);
        put_zeros<N>(g + at);
        put_all<N>(v + at, square);
        if (CENTERED) put_all<N>(a + at, mean);
        if (MOMENTUM) put_all<N>(b + at, velocity);
    }

    template <int N> DEVICE void clear(i64 at) const { put_zeros<N>(g + at); }
};

KERNEL(rmsprop, RmsPropArgs, p) {
    RmsProp o;
    o.p = p.parameters;
    o.g = p.gradients;
    o.v = p.squares;
    o.a = p.means;
    o.b = p.velocities;
    o.rate = *p.rate;
    o.weight_decay = p.weight_decay;
    o.scale = (COMPUTE)*p.scale;
    o.alpha = (COMPUTE)p.alpha;
    o.one_minus_alpha = (COMPUTE)(1.0 - p.alpha);
    o.eps = (COMPUTE)p.eps;
    o.momentum = (COMPUTE)p.momentum;
    sweep(o, p.table, skips(p.scale));
}
