// Matrix products on tensor cores: forms of numbers, and the part of C that a warp computes. Constants:
//   FORM         one of those below
//   A_ALONG_K    A's elements along k are adjacent in shared memory; else those along m
//   B_ALONG_K    B's elements along k are adjacent in shared memory; else those along n
//   A_TYPE, B_TYPE   what is in shared memory
//   IN, COMPUTE  what is multiplied, and what is summed in
//   TILE_K       numbers of a tile along k (16, 32 or 64)
//   WARPS_M, WARPS_N, FRAGS_M, FRAGS_N   warps of a block; 16 x 8 fragments of a warp's part of C (FRAGS_N even)
//   IN_ORDER     if given and true, columns are assigned to fragments in their order, see `column`

// f16 and bf16, to which f32 is rounded; f32 rounded to TF32; f32 split into the sum of two TF32 numbers; f64.
#define F16 0
#define BF16 1
#define TF32 2
#define SPLIT_TF32 3
#define F64 4

#define WIDE (FORM == TF32 || FORM == SPLIT_TF32)

constexpr int BLOCK_THREADS = WARPS_M * WARPS_N * 32;
constexpr int TILE_M = WARPS_M * FRAGS_M * 16, TILE_N = WARPS_N * FRAGS_N * 8;
constexpr bool BOTH_ALONG_K = A_ALONG_K && B_ALONG_K;

// Columns of C are assigned to fragments in pairs, so that a lane holds four adjacent elements of a row, two in each
// fragment of a pair. This is not done if B's fragments are transposed by the load, which needs eight adjacent
// elements: then a lane has two in each fragment, as the hardware has it.
#if IN_ORDER
constexpr bool PAIRED = false;
#else
constexpr bool PAIRED = B_ALONG_K || sizeof(B_TYPE) >= 4;
#endif

// The column, within a warp's part of C, of line `line` of fragment `l`.
DEVICE int column(int l, int line) {
    return PAIRED ? (l >> 1) * 16 + (line >> 1) * 4 + (l & 1) * 2 + (line & 1) : l * 8 + line;
}

DEVICE void clear(COMPUTE (*acc)[FRAGS_N][4]) {
    #pragma unroll
    for (int i = 0; i < FRAGS_M; i++) {
        #pragma unroll
        for (int l = 0; l < FRAGS_N; l++) {
            #pragma unroll
            for (int e = 0; e < 4; e++) acc[i][l][e] = 0;
        }
    }
}

// The start of the warp's part of C, within the block's tile.
DEVICE int warp_row() { return (threadIdx.x >> 5) / WARPS_N * (FRAGS_M * 16); }
DEVICE int warp_col() { return (threadIdx.x >> 5) % WARPS_N * (FRAGS_N * 8); }
