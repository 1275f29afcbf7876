// Units in which elements are moved that nothing is computed of. Constant: UNIT, one of these types.

typedef unsigned char unit1;
typedef unsigned short unit2;
typedef u32 unit4;
typedef u64 unit8;
typedef ulonglong2 unit16;

// A unit full of the element whose bits fill eight bytes.
template <typename U> struct filled { static DEVICE U with(u64 bits) { return (U)bits; } };
template <> struct filled<unit16> { static DEVICE unit16 with(u64 bits) { return make_ulonglong2(bits, bits); } };
