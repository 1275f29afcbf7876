// What kernels of Fourier transforms share. Constants: IN, OUT, COMPUTE (dtypes); FORM; N, the numbers along the axis; POINTS, the
// complex points of a transform: N, or half of it where a point holds two real numbers; ADD_RE, ADD_IM, whether results are added
// to what is there; ROWS, whether the numbers of a line are neighbours in memory.

#define COMPLEX 0
#define INVERSE_COMPLEX 1
#define FORWARD 2
#define INVERSE 3
#define HALVED (POINTS < N)
#define BINS (N / 2 + 1)

typedef COMPUTE C;
struct __align__(2 * COMPUTE_SIZE) Number { C re, im; };

DEVICE Number plus(Number a, Number b) { return {a.re + b.re, a.im + b.im}; }
DEVICE Number minus(Number a, Number b) { return {a.re - b.re, a.im - b.im}; }
DEVICE Number times(Number a, Number b) { return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re}; }
DEVICE Number conjugate(Number a) { return {a.re, -a.im}; }
DEVICE Number swapped(Number a) { return {a.im, a.re}; }

// exp(-2 pi i e / N), for e below N.
DEVICE Number computed_root(i64 e) {
    Number w;
#if COMPUTE_SIZE == 8
    sincospi(-2.0 * (double)e / (double)(i64)N, &w.im, &w.re);
#else
    // The angle closest to 0, of which a float has the most digits.
    sincospif(-2.0f * ((float)(2 * e > (i64)N ? e - (i64)N : e) / (float)(i64)N), &w.im, &w.re);
#endif
    return w;
}

// A transform: where its first number lies in operands and results, and how far from a number to the next.
struct Line {
    i64 from, to, step;
};
// `line` counts neighbours first, and then slices. Where ROWS, it has no neighbours.
DEVICE Line line_at(i64 line, i64 inner) {
    const i64 of_operand = FORM == INVERSE ? BINS : N, of_result = FORM == FORWARD ? BINS : N;
    if (ROWS) return {line * of_operand, line * of_result, 1};
    i64 slice = line / inner, first = line - slice * inner;
    return {slice * of_operand * inner + first, slice * of_result * inner + first, inner};
}

// Bin `k` of an operand, scaled. Those at the edges have no imaginary part.
DEVICE Number bin(const FftArgs& p, const Line& at, i64 k) {
    const IN *re = p.x_re, *im = p.x_im;
    bool edge = k == 0 || 2 * k == N;
    C scale = edge ? (C)p.edge : (C)p.middle;
    return {scale * to<C>(re[at.from + k * at.step]), edge ? (C)0 : scale * to<C>(im[at.from + k * at.step])};
}

// Point `k` before the transform. The parts are swapped for an inverse one, which is computed as a forward one. `root` has roots of N.
template <typename Root> DEVICE Number point_of(const FftArgs& p, const Line& at, i64 k, Root root) {
    const IN *re = p.x_re, *im = p.x_im;
    if (FORM == COMPLEX || FORM == INVERSE_COMPLEX) {
        Number v = {to<C>(re[at.from + k * at.step]), to<C>(im[at.from + k * at.step])};
        return FORM == COMPLEX ? v : swapped(v);
    }
    if (FORM == FORWARD) {
        if (!HALVED) return {to<C>(re[at.from + k * at.step]), (C)0};
        const IN* both = re + at.from + 2 * k * at.step;
        return {to<C>(both[0]), to<C>(both[at.step])};
    }
    if (!HALVED) return swapped(k < BINS ? bin(p, at, k) : conjugate(bin(p, at, N - k)));
    // The transforms of numbers at even and at odd places, from a bin and its mirror image.
    Number a = bin(p, at, k), b = conjugate(bin(p, at, POINTS - k));
    Number even = plus(a, b), odd = times(minus(a, b), conjugate(root(k)));
    return {even.im + odd.re, even.re - odd.im};
}

// How many results a transform has, counted in points or bins.
#define RESULTS (FORM == FORWARD ? BINS : POINTS)

// Stores result `k`. `point` has the transformed points.
template <typename Point, typename Root>
DEVICE void store_result(const FftArgs& p, const Line& at, i64 k, Point point, Root root) {
    OUT *re = p.y_re, *im = p.y_im;
    i64 place = at.to + k * at.step;
    if (FORM == FORWARD) {
        C scale = k == 0 || 2 * k == N ? (C)p.edge : (C)p.middle;
        Number x;
        if (HALVED) {
            i64 of_a = k == POINTS ? 0 : k, of_b = of_a == 0 ? 0 : POINTS - of_a;
            Number a = point(of_a), b = conjugate(point(of_b)), d = minus(a, b);
            x = plus(plus(a, b), times({d.im, -d.re}, root(k)));
            x = {(C)0.5 * x.re, (C)0.5 * x.im};
        } else {
            x = point(k);
        }
        put<ADD_RE>(re + place, scale * x.re);
        put<ADD_IM>(im + place, scale * x.im);
        return;
    }
    Number v = point(k);
    if (FORM == INVERSE) {
        if (!HALVED) { put<ADD_RE>(re + place, v.im); return; }
        OUT* both = re + at.to + 2 * k * at.step;
        put<ADD_RE>(both, v.im);
        put<ADD_RE>(both + at.step, v.re);
        return;
    }
    if (FORM == INVERSE_COMPLEX) v = swapped(v);
    put<ADD_RE>(re + place, (C)p.edge * v.re);
    put<ADD_IM>(im + place, (C)p.edge * v.im);
}

DEVICE void transform_four(Number& v0, Number& v1, Number& v2, Number& v3) {
    Number even = plus(v0, v2), odd = plus(v1, v3), p = minus(v0, v2), q = minus(v1, v3);
    q = {q.im, -q.re};
    v0 = plus(even, odd);
    v1 = plus(p, q);
    v2 = minus(even, odd);
    v3 = minus(p, q);
}

// The transform of RADIX numbers.
template <int RADIX, typename Root> DEVICE void transform(Number* v, Root root) {
    if (RADIX == 2) {
        Number a = v[0], b = v[1];
        v[0] = plus(a, b);
        v[1] = minus(a, b);
    } else if (RADIX == 4) {
        transform_four(v[0], v[1], v[2], v[3]);
    } else if (RADIX == 8) {
        transform_four(v[0], v[2], v[4], v[6]);
        transform_four(v[1], v[3], v[5], v[7]);
        // Times the powers of exp(-pi i / 4).
        const C half = (C)0.70710678118654752440;
        Number a = v[0], b = v[2], c = v[4], d = v[6], e = v[1], f = v[3], g = v[5], h = v[7];
        f = {half * (f.re + f.im), half * (f.im - f.re)};
        g = {g.im, -g.re};
        h = {half * (h.im - h.re), -half * (h.re + h.im)};
        v[0] = plus(a, e); v[1] = plus(b, f); v[2] = plus(c, g); v[3] = plus(d, h);
        v[4] = minus(a, e); v[5] = minus(b, f); v[6] = minus(c, g); v[7] = minus(d, h);
    } else {
        Number sums[RADIX / 2 + 1], differences[RADIX / 2 + 1], first = v[0];
        #pragma unroll
        for (int j = 1; j <= RADIX / 2; j++) {
            sums[j] = plus(v[j], v[RADIX - j]);
            differences[j] = minus(v[j], v[RADIX - j]);
        }
        Number w[RADIX];
        #pragma unroll
        for (int k = 0; k < RADIX; k++) w[k] = root((i64)k * (N / RADIX));
        #pragma unroll
        for (int k = 0; k < RADIX; k++) {
            Number y = first;
            #pragma unroll
            for (int j = 1; j <= RADIX / 2; j++) {
                Number r = w[j * k % RADIX];
                y.re += r.re * sums[j].re - r.im * differences[j].im;
                y.im += r.re * sums[j].im + r.im * differences[j].re;
            }
            v[k] = y;
        }
    }
}

// The result `k` of a larger odd radix, whose numbers `from` has.
template <int RADIX, typename From, typename Root> DEVICE Number result_of(int k, From from, Root root) {
    Number y = from(0);
    int e = 0;
    for (int j = 1; j <= RADIX / 2; j++) {
        e = e + k >= RADIX ? e + k - RADIX : e + k;
        Number a = from(j), b = from(RADIX - j), r = root((i64)e * (N / RADIX));
        Number sum = plus(a, b), difference = minus(a, b);
        y.re += r.re * sum.re - r.im * difference.im;
        y.im += r.re * sum.im + r.im * difference.re;
    }
    return y;
}
