// Transforms that are too long for shared memory, stage by stage. The points of all lines lie in the workspace, line by line, real
// parts before imaginary ones.

struct ComputedRoot {
    DEVICE Number operator()(i64 e) const { return computed_root(e); }
};

DEVICE Number get(const C* plane, i64 all, i64 i) { return {plane[i], plane[all + i]}; }
DEVICE void set(C* plane, i64 all, i64 i, Number v) {
    plane[i] = v.re;
    plane[all + i] = v.im;
}

#if defined(BEGIN)
KERNEL(fft_begin, FftArgs, p) {
    C* x = (C*)p.points;
    const i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x, all = p.lines * POINTS;
    if (i >= all) return;
    const i64 line = i / POINTS;
    set(x, all, i, point_of(p, line_at(line, p.inner), i - line * POINTS, ComputedRoot()));
}
#elif defined(END)
KERNEL(fft_end, FftArgs, p) {
    const C* x = (const C*)p.points;
    const i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x, all = p.lines * POINTS;
    if (i >= p.lines * RESULTS) return;
    const i64 line = i / RESULTS;
    store_result(
        p, line_at(line, p.inner), i - line * RESULTS, [&](i64 point) { return get(x, all, line * POINTS + point); },
        ComputedRoot());
}
#else
// A stage of PASS_RADIX from the points to the others. `before`: the product of the radices before.
KERNEL(fft_pass, FftArgs, p) {
    const C* x = (const C*)p.points;
    C* y = (C*)p.others;
    const i64 before = p.before, all = p.lines * POINTS, apart = POINTS / PASS_RADIX;
    const i64 t = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    ComputedRoot root;
#if PASS_RADIX <= 8
    if (t >= p.lines * apart) return;
    const i64 line = t / apart, unit = t - line * apart, group = unit / before, q = unit - group * before;
    Number v[PASS_RADIX];
    #pragma unroll
    for (int k = 0; k < PASS_RADIX; k++) v[k] = get(x, all, line * POINTS + unit + k * apart);
    transform<PASS_RADIX>(v, root);
    const i64 step = N / POINTS * before * group;
    #pragma unroll
    for (int k = 0; k < PASS_RADIX; k++) {
        if (k > 0) v[k] = times(v[k], root(step * k));
        set(y, all, line * POINTS + (group * PASS_RADIX + k) * before + q, v[k]);
    }
#else
    if (t >= all) return;
    const i64 line = t / POINTS, point = t - line * POINTS, run = point / before, q = point - run * before;
    const i64 group = run / PASS_RADIX;
    const int k = (int)(run - group * PASS_RADIX);
    Number v = result_of<PASS_RADIX>(
        k, [&](int j) { return get(x, all, line * POINTS + j * apart + group * before + q); }, root);
    set(y, all, t, times(v, root(N / POINTS * before * group * k)));
#endif
}
#endif
