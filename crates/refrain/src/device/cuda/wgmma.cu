// Products by warp groups, four warps each (PTX ISA, "Asynchronous warpgroup level matrix instructions"). Compute capability
// 9.0 only, as `sm_90a`.

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define ON_GROUPS(...) asm volatile(__VA_ARGS__)
#else
#define ON_GROUPS(...) __trap()
#endif

// What a thread wrote to shared memory becomes visible to products of its group after a barrier.
DEVICE void publish_to_groups() { ON_GROUPS("fence.proxy.async.shared::cta;" ::: "memory"); }
// Registers that were written so far may be used by the products that follow.
DEVICE void begin_groups() { ON_GROUPS("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void commit_groups() { ON_GROUPS("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Registers that products in flight read must not change until here.
template <int COUNT> DEVICE void keep_until_here(u32* x) {
    #pragma unroll
    for (int i = 0; i < COUNT; i++) asm volatile("" : "+r"(x[i])::"memory");
}

template <int COUNT> DEVICE void keep_until_here(float* x) {
    #pragma unroll
    for (int i = 0; i < COUNT; i++) asm volatile("" : "+f"(x[i])::"memory");
}

// Waits for all products except the last LEFT. Their results are not read before.
template <int FRAGMENTS, int LEFT> DEVICE void wait_for_groups(float (*d)[4]) {
    ON_GROUPS("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
    #pragma unroll
    for (int l = 0; l < FRAGMENTS; l++) {
        #pragma unroll
        for (int e = 0; e < 4; e++) asm volatile("" : "+f"(d[l][e])::"memory");
    }
}

// Describes a tile in shared memory to the hardware. Its lines of 128 bytes are swizzled by 128 bytes: eight lines
// are adjacent, the next eight begin `eight` bytes later. For lines across k, which hold 64 numbers, those with the
// next 64 numbers begin `wide` bytes later. Addresses count 16 bytes.
DEVICE u64 describe(u32 address, int eight, int wide) {
    return (u64)(address >> 4 & 0x3fff) | (u64)(wide >> 4) << 16 | (u64)(eight >> 4) << 32 | (u64)1 << 62;
}

// The same for a tile so many bytes behind. An addition of the lower half, which has the address, takes fewer instructions.
DEVICE u64 behind(u64 tile, int bytes) { return (tile >> 32) << 32 | ((u32)tile + (u32)(bytes >> 4)); }

#define D4(L) "+f"(d[L][0]), "+f"(d[L][1]), "+f"(d[L][2]), "+f"(d[L][3])
#define D16(L) D4(L), D4(L + 1), D4(L + 2), D4(L + 3)
#define D32 D16(0), D16(4)
#define D64 D32, D16(8), D16(12)
#define N32 \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define N64 \
    N32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59," \
    "%60,%61,%62,%63"

// d = a b, or d += a b if `adds`, for 64 rows, 8 FRAGMENTS columns and 8 TF32 numbers along k. A warp has 16 rows of
// A and D, as in `multiply_tf32`; `b` describes the tile of B.
template <int FRAGMENTS>
DEVICE void multiply_group(float (*d)[4], u32 a0, u32 a1, u32 a2, u32 a3, u64 b, bool adds) {
    static_assert(FRAGMENTS == 8 || FRAGMENTS == 16, "columns of a tile");
    if constexpr (FRAGMENTS == 8) {
        ON_GROUPS("{ .reg .pred p; setp.ne.b32 p, %37, 0;\n"
                  "wgmma.mma_async.sync.aligned.m64n64k8.f32.tf32.tf32 {" N32 "}, {%32,%33,%34,%35}, %36, p, 1, 1; }"
                  : D32 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "r"((int)adds));
    } else {
        ON_GROUPS("{ .reg .pred p; setp.ne.b32 p, %69, 0;\n"
                  "wgmma.mma_async.sync.aligned.m64n128k8.f32.tf32.tf32 {" N64 "}, {%64,%65,%66,%67}, %68, p, 1, 1; }"
                  : D64 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "r"((int)adds));
    }
}

// d += a b for 16 numbers along k, bf16 or f16 if HALF, both described. Lines of tiles run across k if A_ACROSS or
// B_ACROSS.
template <int FRAGMENTS, bool HALF, bool A_ACROSS, bool B_ACROSS> DEVICE void multiply_group(float (*d)[4], u64 a, u64 b) {
    static_assert(FRAGMENTS == 8 || FRAGMENTS == 16, "columns of a tile");
#define OF_GROUP(COLUMNS, TYPE, D, A, B, TA, TB, REGISTERS) \
    ON_GROUPS("wgmma.mma_async.sync.aligned.m64" COLUMNS "k16.f32." TYPE "." TYPE " {" D "}, " A ", " B ", 1, 1, 1, " TA ", " TB ";" \
              : REGISTERS : "l"(a), "l"(b), "n"((int)A_ACROSS), "n"((int)B_ACROSS))
    if constexpr (FRAGMENTS == 8) {
        if constexpr (HALF) OF_GROUP("n64", "f16", N32, "%32", "%33", "%34", "%35", D32);
        else OF_GROUP("n64", "bf16", N32, "%32", "%33", "%34", "%35", D32);
    } else {
        if constexpr (HALF) OF_GROUP("n128", "f16", N64, "%64", "%65", "%66", "%67", D64);
        else OF_GROUP("n128", "bf16", N64, "%64", "%65", "%66", "%67", D64);
    }
#undef OF_GROUP
}

// The same for 8 TF32 numbers along k, whose lines run along k in both.
template <int FRAGMENTS> DEVICE void multiply_group_tf32(float (*d)[4], u64 a, u64 b) {
    static_assert(FRAGMENTS == 8 || FRAGMENTS == 16, "columns of a tile");
    if constexpr (FRAGMENTS == 8) {
        ON_GROUPS("wgmma.mma_async.sync.aligned.m64n64k8.f32.tf32.tf32 {" N32 "}, %32, %33, 1, 1, 1;" : D32 : "l"(a), "l"(b));
    } else {
        ON_GROUPS("wgmma.mma_async.sync.aligned.m64n128k8.f32.tf32.tf32 {" N64 "}, %64, %65, 1, 1, 1;" : D64 : "l"(a), "l"(b));
    }
}

// d += a b for 16 bf16 numbers along k. A warp has 16 rows of A and D, as in `multiply_bf16`; lines of the described tile of B
// run across k.
template <int FRAGMENTS> DEVICE void multiply_group_across(float (*d)[4], const u32* a, u64 b) {
    static_assert(FRAGMENTS == 8, "columns of a tile");
    ON_GROUPS("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" N32 "}, {%32,%33,%34,%35}, %36, 1, 1, 1, 1;"
              : D32 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
