// A step of Adam (Kingma and Ba, 2015) or AdamW (Loshchilov and Hutter, 2019). Constants: those of segments, DECOUPLED (AdamW:
// weight decay acts on the parameters, and not on the gradients).

struct Coefficients { COMPUTE decay, keep, step_size; };

struct Adam {
    IN *p, *g, *m, *v;
    double rate, decay, correction;
    COMPUTE scale, one_minus_beta1, beta2, one_minus_beta2, root_correction, eps;

    DEVICE Coefficients of(const double* settings) const {
        double lr = rate * settings[1];
        return {(COMPUTE)(decay * settings[0]), (COMPUTE)(1.0 - lr * decay * settings[0]), (COMPUTE)(lr / correction)};
    }

    template <int N> DEVICE void update(i64 at, const Coefficients& c) const {
        COMPUTE parameter[N], gradient[N], mean[N], square[N];
        fetch<N>(parameter, p + at);
        fetch<N>(gradient, g + at);
        fetch<N>(mean, m + at);
        fetch<N>(square, v + at);
        #pragma unroll
        for (int i = 0; i < N; i++) {
            COMPUTE d = gradient[i] * scale;
            if (!DECOUPLED) d += c.decay * parameter[i];
            mean[i] += one_minus_beta1 * (d - mean[i]);
            square[i] = beta2 * square[i] + one_minus_beta2 * d * d;
            COMPUTE kept = DECOUPLED ? c.keep * parameter[i] : parameter[i];
            parameter[i] = kept - c.step_size * (mean[i] / (sqrt_(square[i]) / root_correction + eps));
        }
        put_all<N>(p + at, parameter);
        put_zeros<N>(g + at);
        put_all<N>(m + at, mean);
        put_all<N>(v + at, square);
    }

    template <int N> DEVICE void clear(i64 at) const { put_zeros<N>(g + at); }
};

// `base`, from 0 to 1, to the power of `n`. Squaring takes a fraction of the time of `pow`, for which the whole step waits. The
// relative error is about n 2^-53, but the power becomes small as n grows: n base^n is at most 370 for 0.999, so the error stays
// far below a rounding of f32.
DEVICE double power(double base, i64 n) {
    if (sizeof(COMPUTE) > 4) return pow(base, (double)n);
    double y = 1.0;
    for (; n > 0; n >>= 1) {
        if (n & 1) y *= base;
        base *= base;
    }
    return y;
}

KERNEL(adam, AdamArgs, p) {
    __shared__ double powers[2];
    const i64 most = 0x7fffffffffffffff, step = *p.step;
    if (step < 0 || step == most) {
        if (blockIdx.x == 0 && threadIdx.x == 0) report(p.faults, step, most);
        return;
    }
    // Two warps, so that the powers are computed side by side.
    if (threadIdx.x == 0) powers[0] = power(p.beta1, step + 1);
    if (threadIdx.x == 32) powers[1] = power(p.beta2, step + 1);
    __syncthreads();
    Adam o;
    o.p = p.parameters;
    o.g = p.gradients;
    o.m = p.means;
    o.v = p.squares;
    o.rate = *p.rate;
    o.decay = p.weight_decay;
    o.correction = 1.0 - powers[0];
    o.scale = (COMPUTE)*p.scale;
    o.one_minus_beta1 = (COMPUTE)(1.0 - p.beta1);
    o.beta2 = (COMPUTE)p.beta2;
    o.one_minus_beta2 = (COMPUTE)(1.0 - p.beta2);
    o.root_correction = (COMPUTE)sqrt(1.0 - powers[1]);
    o.eps = (COMPUTE)p.eps;
    sweep(o, p.table, skips(p.scale));
}
