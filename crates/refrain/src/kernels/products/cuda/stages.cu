// Two products, one behind the other: rows of the first one's result are rows of the second one's A. Both are in namespaces of
// their own (stage.cu).

static_assert(first::BLOCK_THREADS == second::BLOCK_THREADS && first::TILE_M == second::TILE_M, "warps have the same rows in both");
static_assert(first::WARPS_ALONG_N == second::WARPS_ALONG_N, "warps have the same rows in both");

KERNEL_THAT_WAITS(gemm_stages, Stages, s, __launch_bounds__(first::BLOCK_THREADS)) {
    extern __shared__ __align__(16) unsigned char memory[];
    unsigned char *first_b = memory + first::BYTES_OF_A, *second_b = first_b + first::BYTES_OF_B, *rows = second_b + second::BYTES_OF_B;
    first::Place p = {};
    second::Place q = {};
    p.tile_m = q.tile_m = (int)blockIdx.x;
    take_turn();
    p.tail = first::tail::begin(s.first);
    q.tail = second::tail::begin(s.second);
    first::fetch_a(s.first, p, memory);
    first::fetch_b(s.first, first_b);
    second::fetch_b(s.second, second_b);
    commit();
    wait_for_copies<0>();
    __syncthreads();
    first::run(s.first, p, memory, first_b, rows);
    // Where warps share no rows, none waits for another.
    if (first::WARPS_ALONG_N == 1) __syncwarp();
    else __syncthreads();
    second::run(s.second, q, rows, second_b, rows);
}
