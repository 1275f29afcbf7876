// The weight is spread over the shared memory or the registers of a cluster of CLUSTER blocks. A block has the weights of its UNITS
// hidden features, and computes these for SEQUENCES sequences; at each time step it gives the others what they need of its features.
// PARTS neighbouring threads share a feature; the thread of part p has groups p, p + PARTS, .. of four columns. More constants:
// CLUSTER, UNITS (a multiple of 4), PARTS, SEQUENCES (a power of 2, at most PARTS), THREADS (UNITS * PARTS), IN_REGISTERS
// (PADDED is then a multiple of 4 PARTS).

// Features of all blocks, with zeros behind them.
#define PADDED (CLUSTER * UNITS)
// The groups of four columns that a thread has in registers, and how many of them the loop over them has at a time.
#define CHUNKS (PADDED / (4 * PARTS))
#define UNROLLED (IN_REGISTERS ? CHUNKS : 2)
// Time steps whose operands are on their way.
#define AHEAD (IN_REGISTERS ? 2 : 1)

#if __CUDA_ARCH__ >= 900
DEVICE u32 block_of_cluster() { u32 rank; asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank)); return rank; }
// A barrier of all blocks of the cluster in two halves: after `wait`, a thread sees what the others wrote before `arrive`. What is
// written to global memory in between need not have arrived there.
DEVICE void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
DEVICE void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
// Writes to the place in shared memory that `own` is in this block, of every block of the cluster. Of COUNT threads with the same
// value, each writes to some of the blocks.
template <int COUNT> DEVICE void store_everywhere(const C* own, C value, int thread) {
    const u32 here = (u32)__cvta_generic_to_shared(own);
    #pragma unroll
    for (u32 rank = 0; rank < CLUSTER; rank++) {
        if (rank % COUNT != thread) continue;
        u32 there;
        asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(here), "r"(rank));
#if COMPUTE_SIZE == 8
        asm volatile("st.shared::cluster.f64 [%0], %1;" :: "r"(there), "d"(value) : "memory");
#else
        asm volatile("st.shared::cluster.f32 [%0], %1;" :: "r"(there), "f"(value) : "memory");
#endif
    }
}
#define BOUNDS __cluster_dims__(CLUSTER, 1, 1) __launch_bounds__(THREADS, 1)
#else
// Not for GPUs without clusters.
DEVICE u32 block_of_cluster() { return 0; }
DEVICE void cluster_arrive() {}
DEVICE void cluster_wait() {}
template <int COUNT> DEVICE void store_everywhere(const C*, C, int) {}
#define BOUNDS __launch_bounds__(THREADS, 1)
#endif

// So many threads of a feature get the same sums.
#define COPIES (PARTS / SEQUENCES)
// Of those, how many compute what the sums are for.
#define SHARERS (IN_REGISTERS ? COPIES : 1)

// Which state a thread computes: the sequence and the feature of its block. With the weight in registers, that of which it has the
// sums. Otherwise threads with neighbouring features, which take the sums from shared memory, are neighbours.
DEVICE int own_sequence(int part) { return IN_REGISTERS ? part / COPIES : threadIdx.x / UNITS; }
DEVICE int own_place(int row) { return IN_REGISTERS ? row : threadIdx.x % UNITS; }

// Adds up over the parts. Each thread keeps one sequence: in `sums[0]`, that of its number `part / COPIES`.
template <int N> DEVICE void over_parts(C (&sums)[SEQUENCES][N], int part) {
    int distance = PARTS / 2;
    #pragma unroll
    for (int half = SEQUENCES / 2; half > 0; half /= 2, distance /= 2) {
        const bool upper = part & distance;
        #pragma unroll
        for (int s = 0; s < half; s++) {
            #pragma unroll
            for (int n = 0; n < N; n++) {
                const C given = upper ? sums[s][n] : sums[s + half][n];
                const C kept = upper ? sums[s + half][n] : sums[s][n];
                sums[s][n] = kept + __shfl_xor_sync(FULL, given, distance);
            }
        }
    }
    #pragma unroll
    for (; distance > 0; distance /= 2) {
        #pragma unroll
        for (int n = 0; n < N; n++) sums[0][n] += __shfl_xor_sync(FULL, sums[0][n], distance);
    }
}

// Four columns of a row that is kept in the dtype of the states.
DEVICE Four widened(const IN* at) {
    const vec<IN, 4> v = load<4>(at);
    Four w;
    #pragma unroll
    for (int l = 0; l < 4; l++) w.at[l] = to<C>(v.at[l]);
    return w;
}
