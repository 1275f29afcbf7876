// Tensor cores: asynchronous copies to shared memory, loading fragments from there, and products of fragments (PTX
// ISA, "Matrix multiply-accumulate instructions").

DEVICE u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }

// Copies BYTES to shared memory asynchronously: the first `there` bytes from `from`, then zeros. What many blocks read should be
// CACHED by each multiprocessor: the L2 cache has it in one slice, which would have to answer all blocks.
template <int BYTES, bool CACHED = false> DEVICE void copy_async(void* to, const void* from, int there) {
    static_assert(BYTES == 16 || BYTES == 8 || BYTES == 4 || BYTES == 2, "what is copied at once");
    if (BYTES == 16 && !CACHED) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(there) : "memory");
    } else if (BYTES > 2) {
        asm volatile("cp.async.ca.shared.global [%0], [%1], %3, %2;" ::"r"(shared_address(to)), "l"(from), "r"(there), "n"(BYTES)
                     : "memory");
    } else {
        *reinterpret_cast<unsigned short*>(to) = there ? *reinterpret_cast<const unsigned short*>(from) : 0;
    }
}
DEVICE void commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int LEFT> DEVICE void wait_for_copies() { asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory"); }

DEVICE void load_matrices(u32* r, const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(row)) : "memory");
}
DEVICE void load_matrices_transposed(u32* r, const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(row)) : "memory");
}

// Two matrices, at the addresses that the first 16 lanes give.
DEVICE void load_two_transposed(u32* r, const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1]) : "r"(shared_address(row)) : "memory");
}

#define MMA(SHAPE, TYPE) \
    "mma.sync.aligned." SHAPE ".row.col.f32." TYPE "." TYPE ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
#define MMA_OPERANDS(A0, A1, A2, A3, B0, B1) \
    : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(A0), "r"(A1), "r"(A2), "r"(A3), "r"(B0), "r"(B1)

// d += a b, 16 x 8 x 16.
DEVICE void multiply_f16(float* d, const u32* a, const u32* b) {
    asm volatile(MMA("m16n8k16", "f16") MMA_OPERANDS(a[0], a[1], a[2], a[3], b[0], b[1]));
}
DEVICE void multiply_bf16(float* d, const u32* a, const u32* b) {
    asm volatile(MMA("m16n8k16", "bf16") MMA_OPERANDS(a[0], a[1], a[2], a[3], b[0], b[1]));
}
// Half of the depth: 16 x 8 x 8, and 16 x 8 x 4 in TF32.
DEVICE void multiply_bf16_half(float* d, u32 a0, u32 a1, u32 b) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a0), "r"(a1), "r"(b));
}
DEVICE void multiply_tf32_half(float* d, u32 a0, u32 a1, u32 b) {
    asm volatile("mma.sync.aligned.m16n8k4.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a0), "r"(a1), "r"(b));
}
DEVICE void multiply_tf32(float* d, u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm volatile(MMA("m16n8k8", "tf32") MMA_OPERANDS(a0, a1, a2, a3, b0, b1));
}
DEVICE u32 round_tf32(float x) { u32 y; asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y) : "f"(x)); return y; }
DEVICE u32 pack_bf16(float low, float high) {
    u32 y;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
    return y;
}
DEVICE u32 pack_f16(float low, float high) {
    u32 y;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
    return y;
}

// x as a sum of two TF32 numbers, whose lower 13 bits tensor cores ignore. The sum of all products except that of the
// two lower parts differs from the f32 product by at most about 2^-20, and by 2^-23 on average (Ootomo and Yokota,
// "Recovering single precision accuracy from Tensor Cores", 2022). Infinity and NaN become NaN, and so do finite
// numbers that round to infinity: those of (1 - 2^-12) 2^128 or more.
DEVICE void split_tf32(float x, u32& high, u32& low) {
    high = __float_as_uint(x) + 0x1000;
    float rest = x - __uint_as_float(high & 0xffffe000);
    // This compensates for the truncation on average. Adding to the bits would overflow those of NaN.
    low = __float_as_uint(fmaf(rest, 0x1.8p-12f, rest));
}

// Transposes an 8 x 8 matrix that lanes hold as pairs of a row: lane 4g + t has columns 2t and 2t + 1 of row g.
DEVICE u32 transpose_matrix(u32 x) {
    u32 y;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}
