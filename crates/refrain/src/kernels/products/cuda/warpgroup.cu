// Matrix products of f32, each number rounded to TF32 or split into the sum of two TF32 numbers, by warp groups (PTX ISA,
// "Asynchronous warpgroup level matrix instructions"; compute capability 9.0). A block computes a tile of C. Its warps load rows of
// A directly into registers, and share B's tile, in one part or in two, in shared memory. A block rounds or splits each number
// once. The warps of a block compute different rows. Constants, beside those of tiles.cu:
//   SUMS         also sums A's rows
//   MEMORY_BYTES the shared memory for two tiles of B; a launch of one step has half of it

static_assert((FORM == SPLIT_TF32 || FORM == TF32) && TILE_K == 32, "what is multiplied");
static_assert(WARPS_M % 4 == 0 && WARPS_N == 1 && FRAGS_M == 1, "the form of a tile");

// The bytes of one part of a tile of B (128 bytes per column), and of all parts. There are two such slots.
constexpr int PART_BYTES = TILE_N * TILE_K * 4, SLOT_BYTES = PARTS * PART_BYTES;
static_assert(2 * SLOT_BYTES <= MEMORY_BYTES, "the launch counts shared memory as the text does");

// The parts of a number that are multiplied: both, or one in `high`.
DEVICE void to_tf32_parts(float x, u32& high, u32& low) {
    if (FORM == SPLIT_TF32) split_tf32(x, high, low);
    else high = round_tf32(x);
}

// Of 16 numbers along k of a row of A, lane t of four holds those at 4t .. 4t + 3. Two instructions multiply the 16
// numbers; instruction h sees 8 of them: first those at 2h of the four lanes, then those at 2h + 1. Columns of B are
// stored in shared memory in that order, in pieces of 16 bytes: piece 4q + i holds the i-th number of each lane, of
// the q-th 16 numbers.
constexpr int PIECES = TILE_K / 4, QUADS = TILE_K / 16;

// The offset of a piece of a column. Within each eight columns, pieces are permuted as the hardware expects it
// ("128-byte swizzling"), which avoids bank conflicts.
DEVICE int place_of_piece(int line, int piece) { return line * 128 + ((piece ^ (line & 7)) << 4); }

// Reads four numbers that are `step` bytes apart; zeros from `left` on.
template <bool WHOLE, bool ALONG_K, int COPY> DEVICE void read_four(float* x, const char* at, u32 step, int left) {
    if (WHOLE && ALONG_K && COPY == 4) {
        vec<float, 4> v = load<4>(reinterpret_cast<const f32_t*>(at));
        #pragma unroll
        for (int i = 0; i < 4; i++) x[i] = v.at[i];
    } else if (WHOLE && ALONG_K && COPY == 2) {
        #pragma unroll
        for (int i = 0; i < 4; i += 2) {
            vec<float, 2> v = load<2>(reinterpret_cast<const f32_t*>(at) + i);
            x[i] = v.at[0];
            x[i + 1] = v.at[1];
        }
    } else {
        #pragma unroll
        for (int i = 0; i < 4; i++) {
            const f32_t* p = reinterpret_cast<const f32_t*>(at + (ALONG_K ? 4 * i : (u64)step * i));
            x[i] = WHOLE || i < left ? *p : 0.0f;
        }
    }
}

// A thread's part of A's tiles: rows g and g + 8 of its warp's 16, and its four of each 16 numbers along k. Past the
// last row it reads the last row again, and the results are not used.
struct RowsOfA {
    // The addresses of both rows' first numbers in the next tile. `step`: bytes between numbers along k.
    const char* at[2];
    u32 step;
    int k;

    DEVICE RowsOfA(const Job& j, const f32_t* a, int row0, int from)
        : step((u32)j.a_col * 4), k((threadIdx.x & 3) * 4) {
        #pragma unroll
        for (int h = 0; h < 2; h++) {
            int row = min(row0 + warp_row() + ((int)(threadIdx.x & 31) >> 2) + 8 * h, (int)j.m - 1);
            at[h] = reinterpret_cast<const char*>(a + row * j.a_row + (from + k) * j.a_col);
        }
    }

    // Reads the next tile, of which `left` numbers exist along k.
    template <bool WHOLE> DEVICE void read(float (*x)[QUADS][4], int left) {
        #pragma unroll
        for (int h = 0; h < 2; h++) {
            #pragma unroll
            for (int q = 0; q < QUADS; q++) {
                const char* from = at[h] + (A_ALONG_K ? 64 * q : (u64)step * (16 * q));
                read_four<WHOLE, A_ALONG_K, A_COPY>(x[h][q], from, step, left - k - 16 * q);
            }
            at[h] += A_ALONG_K ? TILE_K * 4 : (u64)step * TILE_K;
        }
    }
};

// The part of B's tiles that a thread stores to shared memory: EACH pieces of four numbers. If B is along k, it reads
// four adjacent numbers, which belong to four pieces; else every fourth number along k, which form one piece. Past
// the last column it reads the last column again.
struct PiecesOfB {
    static constexpr int EACH = TILE_N * PIECES / BLOCK_THREADS;
    // The interval between a thread's columns, or between its pieces of a column.
    static constexpr int SWEEP = B_ALONG_K ? BLOCK_THREADS / PIECES : BLOCK_THREADS / TILE_N;
    static_assert(EACH * BLOCK_THREADS == TILE_N * PIECES && SWEEP > 0, "all threads bring alike");
    static_assert(B_ALONG_K ? SWEEP % 16 == 0 : 4 % SWEEP == 0, "a thread's pieces lie evenly");
    static constexpr int COLUMNS = B_ALONG_K ? EACH : 1;

    // The addresses of its columns' first numbers in the next tile. `step`: bytes between numbers along k.
    const char* at[COLUMNS];
    u32 step;
    // The column's line in shared memory, and a piece of it.
    int line, piece;

    DEVICE PiecesOfB(const Job& j, const f32_t* b, int col0, int from)
        : step((u32)j.b_row * 4), line(B_ALONG_K ? threadIdx.x / PIECES : threadIdx.x % TILE_N),
          piece(B_ALONG_K ? threadIdx.x % PIECES : threadIdx.x / TILE_N) {
        #pragma unroll
        for (int c = 0; c < COLUMNS; c++) {
            int n = min(col0 + column(line >> 3, line & 7) + c * SWEEP, (int)j.n - 1);
            at[c] = reinterpret_cast<const char*>(b + n * j.b_col + (from + (B_ALONG_K ? 4 * piece : piece)) * j.b_row);
        }
    }

    template <bool WHOLE> DEVICE void read(float (*x)[4], int left) {
        #pragma unroll
        for (int e = 0; e < EACH; e++) {
            if (B_ALONG_K) {
                read_four<WHOLE, true, B_COPY>(x[e], at[e], step, left - 4 * piece);
            } else {
                int k = e * SWEEP / 4 * 16 + e * SWEEP % 4;
                #pragma unroll
                for (int i = 0; i < 4; i++) {
                    const f32_t* p = reinterpret_cast<const f32_t*>(at[0] + (u64)step * (k + 4 * i));
                    x[e][i] = WHOLE || piece + k + 4 * i < left ? *p : 0.0f;
                }
            }
        }
        #pragma unroll
        for (int c = 0; c < COLUMNS; c++) at[c] += B_ALONG_K ? TILE_K * 4 : (u64)step * TILE_K;
    }

    DEVICE void write(unsigned char* slot, const float (*x)[4]) const {
        #pragma unroll
        for (int e = 0; e < EACH; e++) {
            vec<u32, 4> parts[PARTS];
            #pragma unroll
            for (int i = 0; i < 4; i++) to_tf32_parts(x[e][i], parts[0].at[i], parts[PARTS - 1].at[i]);
            #pragma unroll
            for (int part = 0; part < PARTS; part++) {
                if (B_ALONG_K) {
                    #pragma unroll
                    for (int i = 0; i < 4; i++) {
                        unsigned char* to = slot + place_of_piece(line + e * SWEEP, (piece & ~3) + i) + (piece & 3) * 4;
                        *reinterpret_cast<u32*>(to + part * PART_BYTES) = parts[part].at[i];
                    }
                } else {
                    unsigned char* to = slot + place_of_piece(line, piece + e * SWEEP);
                    store<4>(reinterpret_cast<u32*>(to + part * PART_BYTES), parts[part]);
                }
            }
        }
    }
};

// Begins d = a b, or d += a b if `adds`, for 16 of the tile's numbers along k of one part of each: `a` holds those of A's rows g
// and g + 8; the descriptor `b` points to B's.
DEVICE void multiply_quads(float (*d)[4], const u32* const* a, u64 b, bool adds) {
    #pragma unroll
    for (int i = 0; i < 2; i++) {
        const u32 *u = a[0] + 2 * i, *w = a[1] + 2 * i;
        multiply_group<FRAGS_N>(d, u[0], w[0], u[1], w[1], b + i * (32 >> 4), adds || i > 0);
    }
}

KERNEL_THAT_WAITS(gemm_warpgroup, Job, j, __launch_bounds__(BLOCK_THREADS)) {
    extern __shared__ __align__(1024) unsigned char memory[];
    Place p = place(j);
    int from = (int)(p.split * j.depth), left = (int)min(j.k - from, j.depth);
    const f32_t* a;
    const f32_t* b;
    begin(j, p.batch, a, b);
    int row0 = p.tile_m * TILE_M, col0 = p.tile_n * TILE_N;

    RowsOfA rows(j, a, row0, from);
    PiecesOfB pieces(j, b, col0, from);
    take_turn(j, p);
    float x[2][QUADS][4], y[PiecesOfB::EACH][4];
    auto read = [&] {
        if (left >= TILE_K) {
            rows.read<true>(x, left);
            pieces.read<true>(y, left);
        } else if (left > 0) {
            rows.read<false>(x, left);
            pieces.read<false>(y, left);
        }
    };
    bool sums = SUMS && p.tile_n == 0;
    float sum[2] = {0, 0};
    float acc[1][FRAGS_N][4];
    clear(acc);

    read();
    u64 description = describe(shared_address(memory), 1024, 16);
    for (int slot = 0; left > 0; slot ^= 1) {
        u32 high[2][QUADS][4], low[2][QUADS][4];
        #pragma unroll
        for (int h = 0; h < 2; h++) {
            #pragma unroll
            for (int q = 0; q < QUADS; q++) {
                #pragma unroll
                for (int i = 0; i < 4; i++) {
                    to_tf32_parts(x[h][q][i], high[h][q][i], low[h][q][i]);
                    if (sums) sum[h] += x[h][q][i];
                }
            }
        }
        pieces.write(memory + slot * SLOT_BYTES, y);
        // The next tile is loaded during the products of this one. The loads are issued after the fence, since the
        // fence waits for all loads before it.
        publish_to_groups();
        left -= TILE_K;
        read();
        // After this, the tensor cores see the tile, and no thread needs the previous one.
        __syncthreads();
        u64 tile = description + (slot * SLOT_BYTES >> 4);
#if FORM == TF32
        begin_groups();
        #pragma unroll
        for (int q = 0; q < QUADS; q++) {
            const u32* a[2] = {high[0][q], high[1][q]};
            multiply_quads(acc[0], a, tile + (q * 64 >> 4), true);
        }
        commit_groups();
        wait_for_groups<FRAGS_N, 0>(acc[0]);
        #pragma unroll
        for (int q = 0; q < QUADS; q++) {
            #pragma unroll
            for (int h = 0; h < 2; h++) keep_until_here<4>(high[h][q]);
        }
#else
        #pragma unroll
        for (int q = 0; q < QUADS; q++) {
            const u32 *of_high[2] = {high[0][q], high[1][q]}, *of_low[2] = {low[0][q], low[1][q]};
            u64 b = tile + (q * 64 >> 4);
            float part[FRAGS_N][4];
            begin_groups();
            multiply_quads(part, of_low, b, false);
            multiply_quads(part, of_high, b + (PART_BYTES >> 4), true);
            multiply_quads(part, of_high, b, true);
            commit_groups();
            wait_for_groups<FRAGS_N, 0>(part);
            #pragma unroll
            for (int h = 0; h < 2; h++) {
                keep_until_here<4>(high[h][q]);
                keep_until_here<4>(low[h][q]);
            }
            // Tensor cores truncate their sums; this addition rounds.
            #pragma unroll
            for (int l = 0; l < FRAGS_N; l++) {
                #pragma unroll
                for (int e = 0; e < 4; e++) acc[0][l][e] += part[l][e];
            }
        }
#endif
    }

    finish_block(j, p, acc, memory);
    if (sums) {
        #pragma unroll
        for (int h = 0; h < 2; h++) {
            float v = warp_reduce<4>(sum[h], Add());
            if ((threadIdx.x & 3) == 0) finish_sum(j, p, row0 + warp_row() + ((int)(threadIdx.x & 31) >> 2) + 8 * h, v);
        }
    }
}
