// The weight is spread over the shared memory of a cluster of CLUSTER blocks. A block has the weights of its UNITS hidden
// features, and computes these for SEQUENCES sequences; at each time step it gives the others what they need of its features.
// PARTS neighbouring threads share a feature; the thread of part p has groups p, p + PARTS, .. of four columns. More constants:
// CLUSTER, UNITS (a multiple of 4), PARTS, SEQUENCES (a power of 2, at most PARTS), THREADS.

// Features of all blocks, with zeros behind them.
#define PADDED (CLUSTER * UNITS)

#if __CUDA_ARCH__ >= 900
DEVICE u32 block_of_cluster() { u32 rank; asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank)); return rank; }
// Waits for all blocks of the cluster, and sees what they wrote.
DEVICE void cluster_barrier() {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// Writes to the place in shared memory that `own` is in this block, of every block of the cluster.
DEVICE void store_everywhere(const C* own, C value) {
    const u32 here = (u32)__cvta_generic_to_shared(own);
    #pragma unroll
    for (u32 rank = 0; rank < CLUSTER; rank++) {
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
DEVICE void cluster_barrier() {}
DEVICE void store_everywhere(const C*, C) {}
#define BOUNDS __launch_bounds__(THREADS, 1)
#endif

// Adds up over the parts. Each thread keeps one sequence: in `sums[0]`, that of its number `part / (PARTS / SEQUENCES)`.
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
