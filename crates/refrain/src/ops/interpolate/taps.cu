// Which elements of an axis an element of the resized axis is computed from. Constants: ELEMENT; PLACE, a signed integer; KIND, one of
// those below; CORNERS, whether the first and the last elements of both axes lie on each other.

#define NEAREST 1
#define NEAREST_EXACT 2
#define LINEAR 3
#define CUBIC 4
#define AREA 5

#if KIND == LINEAR
#define TAPS 2
#elif KIND == CUBIC
#define TAPS 4
#else
#define TAPS 1
#endif

typedef arithmetic<ELEMENT>::type C;

// `count` elements from `first` on. Those beyond an end of the axis are the element there. All of AREA have the first weight.
struct Taps {
    PLACE first, count;
    C weights[TAPS];
};

#if KIND == CUBIC
// The weight of an element at this distance, up to 1 and from 1 to 2.
DEVICE C near_weight(C d) {
    return ((C)1.25 * d - (C)2.25) * d * d + (C)1;
}

DEVICE C far_weight(C d) {
    return (((C)-0.75 * d + (C)3.75) * d - (C)6) * d + (C)3;
}
#endif

// The taps of element i of an axis of n elements that becomes one of m.
DEVICE Taps taps_of(PLACE n, PLACE m, PLACE i) {
    Taps t;
    t.count = TAPS;
    t.weights[0] = (C)1;
#if KIND == NEAREST
    t.first = i * n / m;
#elif KIND == NEAREST_EXACT
    t.first = (2 * i + 1) * n / (2 * m);
#elif KIND == AREA
    t.first = i * n / m;
    t.count = ((i + 1) * n + m - 1) / m - t.first;
    t.weights[0] = (C)1 / (C)t.count;
#else
#if CORNERS
    PLACE part = i * (n - 1);
    const PLACE of = max(m - 1, (PLACE)1);
#else
    PLACE part = (2 * i + 1) * n - m;
    const PLACE of = 2 * m;
#endif
#if KIND == LINEAR
    part = max(part, (PLACE)0);
#endif
    PLACE whole = part / of;
    if (part < whole * of) whole--;
    const C d = (C)(part - whole * of) / (C)of;
#if KIND == LINEAR
    t.first = whole;
    t.weights[0] = (C)1 - d;
    t.weights[1] = d;
#else
    t.first = whole - 1;
    t.weights[0] = far_weight((C)1 + d);
    t.weights[1] = near_weight(d);
    t.weights[2] = near_weight((C)1 - d);
    t.weights[3] = far_weight((C)2 - d);
#endif
#endif
    return t;
}
