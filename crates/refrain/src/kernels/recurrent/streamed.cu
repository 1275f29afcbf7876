// The weight is too large for the registers of a multiprocessor: each time step reads it from the L2 cache. So a block computes
// SEQUENCES sequences. PARTS neighbouring threads share an element of a product. More constants: SEQUENCES (at most PARTS),
// PARTS, THREADS, IN_SHARED (whether the states of a block fit in shared memory, or lie in the workspace).

#define BOUNDS __launch_bounds__(THREADS)
// Features, with zeros behind them.
#define PADDED ((HIDDEN + 3) / 4 * 4)

// What a block keeps of a sequence, PADDED numbers each: its state, a sum for each gate, and what it carries beside the state.
#define KEPT (1 + GATES + CARRIED)

DEVICE C* kept_by_block(C* workspace) {
    extern __shared__ __align__(32) unsigned char memory[];
    return IN_SHARED ? reinterpret_cast<C*>(memory) : workspace + (i64)blockIdx.x * (KEPT * PADDED * SEQUENCES);
}

// The sequences of this block.
DEVICE int sequences(i64 batch) {
    const i64 rest = batch - (i64)blockIdx.x * SEQUENCES;
    return rest < SEQUENCES ? (int)rest : SEQUENCES;
}

DEVICE C over_parts(C x) { return warp_reduce<PARTS>(x, Add()); }
