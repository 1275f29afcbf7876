// Keys: unsigned numbers that have the order of the elements, NaN last, -0 equal to 0. Lines are along the middle of
// [outer, n, inner]. Constants: IN (dtype); DESCENDING; VALUES, whether elements are wanted beside their positions.

#if IN_SIZE == 8
typedef u64 KEY;
#else
typedef u32 KEY;
#endif

// The bits of a number of BITS bits, whose sign is the highest one.
template <int BITS> DEVICE u64 of_float(u64 bits, bool nan, bool zero) {
    const u64 sign = (u64)1 << (BITS - 1), all = sign | (sign - 1);
    if (nan) return all;
    if (zero) bits = 0;
    return bits & sign ? ~bits & all : bits | sign;
}
DEVICE u64 key_of(f64_t x) { return of_float<64>((u64)__double_as_longlong(x), x != x, x == 0.0); }
DEVICE u64 key_of(f32_t x) { return of_float<32>(__float_as_uint(x), x != x, x == 0.0f); }
DEVICE u64 key_of(f16_t x) { return of_float<16>(x.bits, is_nan(widen(x)), widen(x) == 0.0f); }
DEVICE u64 key_of(bf16_t x) { return of_float<16>(x.bits, is_nan(widen(x)), widen(x) == 0.0f); }
DEVICE u64 key_of(i64_t x) { return (u64)x ^ (u64)1 << 63; }
DEVICE u64 key_of(i32_t x) { return (u32)x ^ 0x80000000u; }
DEVICE u64 key_of(u8_t x) { return x; }

// The key in the order that is wanted, in the bits of the dtype.
DEVICE KEY ordered(IN x) {
    const u64 sign = (u64)1 << (8 * IN_SIZE - 1), all = sign | (sign - 1);
    return (KEY)(DESCENDING ? ~key_of(x) & all : key_of(x));
}

// The first element of a line, in a tensor with `length` elements in the middle.
DEVICE u64 start_of(const SortArgs& p, i64 line, i64 length) {
    const i64 outer = line / p.inner;
    return (u64)outer * length * p.inner + (line - outer * p.inner);
}

// Stores the element at `position` of a line as the one of this rank.
DEVICE void take(const SortArgs& p, i64 line, i64 rank, i64 position) {
    const u64 to = start_of(p, line, p.keep) + rank * p.inner;
    p.positions[to] = position;
    if (VALUES) p.values[to] = p.x[start_of(p, line, p.n) + position * p.inner];
}
