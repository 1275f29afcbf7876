// Keys of elements: unsigned numbers in their order, NaN last, -0 equal to 0. Lines are along the middle of [outer, n, inner].
// Constants: IN (dtype); KEY (as many bits, at least 32); DESCENDING; VALUES, whether elements are wanted beside their positions.

#define SIGN ((u64)1 << (8 * IN_SIZE - 1))
#define ALL (SIGN | (SIGN - 1))

// The key of a float by its bits.
DEVICE u64 of_float(u64 bits, bool nan, bool zero) {
    if (nan) return ALL;
    if (zero) bits = 0;
    return bits & SIGN ? ~bits & ALL : bits | SIGN;
}
DEVICE u64 key_of(f64_t x) { return of_float((u64)__double_as_longlong(x), x != x, x == 0.0); }
DEVICE u64 key_of(f32_t x) { return of_float(__float_as_uint(x), x != x, x == 0.0f); }
DEVICE u64 key_of(f16_t x) { return of_float(x.bits, is_nan(widen(x)), widen(x) == 0.0f); }
DEVICE u64 key_of(bf16_t x) { return of_float(x.bits, is_nan(widen(x)), widen(x) == 0.0f); }
DEVICE u64 key_of(i64_t x) { return (u64)x ^ (u64)1 << 63; }
DEVICE u64 key_of(i32_t x) { return (u32)x ^ 0x80000000u; }
DEVICE u64 key_of(u8_t x) { return x; }

// The key in the order that is wanted, in the bits of the dtype.
DEVICE KEY ordered(IN x) { return (KEY)(DESCENDING ? ~key_of(x) & ALL : key_of(x)); }

// The element of a key into `x`. Several have the key of zero, and that of NaN: false.
template <typename F> DEVICE bool float_of(u64 key, F* x) {
    union { u64 bits; F value; } of;
    of.bits = key & SIGN ? key ^ SIGN : ~key & ALL;
    *x = of.value;
    return key != SIGN && key != ALL;
}
DEVICE bool element_of(u64 key, f64_t* x) { return float_of(key, x); }
DEVICE bool element_of(u64 key, f32_t* x) { return float_of(key, x); }
DEVICE bool element_of(u64 key, f16_t* x) { return float_of(key, x); }
DEVICE bool element_of(u64 key, bf16_t* x) { return float_of(key, x); }
DEVICE bool element_of(u64 key, i64_t* x) { return *x = (i64)(key ^ SIGN), true; }
DEVICE bool element_of(u64 key, i32_t* x) { return *x = (int)(u32)(key ^ SIGN), true; }
DEVICE bool element_of(u64 key, u8_t* x) { return *x = (u8_t)key, true; }

// The first element of a line, in a tensor with `length` elements in the middle.
DEVICE u64 start_of(i64 line, i64 length, i64 inner) {
    const i64 outer = line / inner;
    return (u64)outer * length * inner + (line - outer * inner);
}

// Stores the element at `position` of a line as the one of this rank.
template <typename ARGS> DEVICE void take(const ARGS& p, i64 line, i64 rank, i64 position) {
    const u64 to = start_of(line, p.keep, p.inner) + rank * p.inner;
    p.positions[to] = position;
    if (VALUES) p.values[to] = p.x[start_of(line, p.n, p.inner) + position * p.inner];
}
