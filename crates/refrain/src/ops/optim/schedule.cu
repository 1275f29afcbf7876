// The learning rate of a schedule, from the step counter. SCHEDULE is one of those below; its arguments are in the
// comment.

enum {
    CONSTANT,       // lr
    COSINE,         // lr, eta_min, t_max
    ONE_CYCLE,      // max_lr, total_steps, pct_start, div_factor, final_div_factor
    WARMUP,         // lr, warmup_steps, start_factor
    WARMUP_COSINE,  // lr, warmup_steps, start_factor, total_steps, eta_min
};

// Half a cosine from `start` to `end`. If `part` is above 1, the result is `end`.
DEVICE double anneal(double start, double end, double part) {
    part = part < 0.0 ? 0.0 : part > 1.0 ? 1.0 : part;
    return end + (start - end) * (1.0 + cos(3.14159265358979323846 * part)) / 2.0;
}

// The progress of `step` on the way of `steps` steps. A way without steps is complete.
DEVICE double part(double step, double steps) { return steps > 0.0 ? step / steps : 1.0; }

DEVICE double rate(double t, const double* a) {
    switch (SCHEDULE) {
    case COSINE: return anneal(a[0], a[1], part(t, a[2]));
    case ONE_CYCLE: {
        double first = a[0] / a[3], last = first / a[4], peak = a[2] * a[1] - 1.0, end = a[1] - 1.0;
        return t <= peak ? anneal(first, a[0], part(t, peak)) : anneal(a[0], last, part(t - peak, end - peak));
    }
    case WARMUP:
    case WARMUP_COSINE:
        if (t < a[1]) return a[0] * (a[2] + (1.0 - a[2]) * t / a[1]);
        return SCHEDULE == WARMUP ? a[0] : anneal(a[0], a[4], part(t - a[1], a[3] - a[1]));
    default: return a[0];
    }
}

KERNEL(learning_rate, LearningRateArgs, p) {
    const i64 step = *p.step;
    *p.rate = rate(step < 0 ? 0.0 : (double)step, p.arguments);
}
