// A step of Lion (Chen et al., 2023). Constants: those of segments.

struct Coefficients { COMPUTE keep, rate; };

struct Lion {
    IN *p, *g, *m;
    double rate, decay;
    COMPUTE scale, beta1, one_minus_beta1, beta2, one_minus_beta2;

    DEVICE Coefficients of(const double* settings) const {
        double lr = rate * settings[1];
        return {(COMPUTE)(1.0 - lr * decay * settings[0]), (COMPUTE)lr};
    }

    template <int N> DEVICE void update(i64 at, const Coefficients& c) const {
        COMPUTE parameter[N], gradient[N], mean[N];
        fetch<N>(parameter, p + at);
        fetch<N>(gradient, g + at);
        fetch<N>(mean, m + at);
        #pragma unroll
        for (int i = 0; i < N; i++) {
            COMPUTE d = gradient[i] * scale, mixed = beta1 * mean[i] + one_minus_beta1 * d;
            // The sign; NaN stays NaN.
            COMPUTE sign = mixed > (COMPUTE)0 ? (COMPUTE)1 : mixed < (COMPUTE)0 ? (COMPUTE)-1 : mixed;
            parameter[i] = c.keep * parameter[i] - c.rate * sign;
            mean[i] = beta2 * mean[i] + one_minus_beta2 * d;
        }
        put_all<N>(p + at, parameter);
        put_zeros<N>(g + at);
        put_all<N>(m + at, mean);
    }

    template <int N> DEVICE void clear(i64 at) const { put_zeros<N>(g + at); }
};

KERNEL(lion, LionArgs, p) {
    Lion o;
    o.p = p.parameters;
    o.g = p.gradients;
    o.m = p.means;
    o.rate = *p.rate;
    o.decay = p.weight_decay;
    o.scale = (COMPUTE)*p.scale;
    o.beta1 = (COMPUTE)p.beta1;
    o.one_minus_beta1 = (COMPUTE)(1.0 - p.beta1);
    o.beta2 = (COMPUTE)p.beta2;
    o.one_minus_beta2 = (COMPUTE)(1.0 - p.beta2);
    sweep(o, p.table, skips(p.scale));
}
