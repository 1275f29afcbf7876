// Products of tiles in shared memory on tensor cores. The tiles (TileA and TileB) are defined before. Constants, beside those of
// forms.cu:
//   ADJACENT   whether a lane's four numbers of f32 along k are adjacent. It decides in which order numbers are summed.

#if WIDE

// A lane's four numbers of a row: TF32 numbers, or the high and low TF32 parts.
constexpr int PARTS = FORM == SPLIT_TF32 ? 2 : 1;
struct Quad { u32 at[PARTS][4]; };

// A lane's four numbers along k of a row of a 16-deep fragment. Any four will do if they are the same for A and B.
template <typename TILE, bool ALONG_K> DEVICE Quad quad(const IN* tile, int outer, int k, int lane) {
    float x[4];
    if (ADJACENT && ALONG_K) {
        vec<float, 4> v = load<4>(tile + TILE::place_of(outer, k + 4 * lane));
        #pragma unroll
        for (int i = 0; i < 4; i++) x[i] = v.at[i];
    } else {
        #pragma unroll
        for (int i = 0; i < 4; i++) x[i] = tile[TILE::place_of(outer, k + (ADJACENT ? 4 * lane + i : lane + 4 * i))];
    }
    Quad q;
    #pragma unroll
    for (int i = 0; i < 4; i++) {
        if (FORM == SPLIT_TF32) split_tf32(x[i], q.at[0][i], q.at[PARTS - 1][i]);
        else q.at[0][i] = TILE::IS_TF32 ? __float_as_uint(x[i]) : round_tf32(x[i]);
    }
    return q;
}

// d[l] += a y[l], each 16 x 8 x 16, for the given parts of A's upper and lower rows and of B. A product waits for the
// previous product with the same sum, so products of other sums are between them.
DEVICE void multiply_parts(float (*d)[4], const Quad* a, int part_a, const Quad* y, int part_b) {
    const u32 *u = a[0].at[part_a], *w = a[1].at[part_a];
    #pragma unroll
    for (int half = 0; half < 4; half += 2) {
        #pragma unroll
        for (int l = 0; l < FRAGS_N; l++) {
            const u32* z = y[l].at[part_b];
            multiply_tf32(d[l], u[half], w[half], u[half + 1], w[half + 1], z[half], z[half + 1]);
        }
    }
}

DEVICE void multiply_quads(float (*d)[4], const Quad* a, const Quad* y) {
    if (FORM == TF32) {
        multiply_parts(d, a, 0, y, 0);
    } else {
        // Tensor cores truncate their sums; this addition rounds.
        float part[FRAGS_N][4];
        #pragma unroll
        for (int l = 0; l < FRAGS_N; l++) {
            #pragma unroll
            for (int e = 0; e < 4; e++) part[l][e] = 0;
        }
        multiply_parts(part, a, PARTS - 1, y, 0);
        multiply_parts(part, a, 0, y, PARTS - 1);
        multiply_parts(part, a, 0, y, 0);
        #pragma unroll
        for (int l = 0; l < FRAGS_N; l++) {
            #pragma unroll
            for (int e = 0; e < 4; e++) d[l][e] += part[l][e];
        }
    }
}

DEVICE void multiply_tile(
    float (*acc)[FRAGS_N][4], float (*)[4], const IN* a, const IN* b, int row, int col
) {
    int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    #pragma unroll
    for (int k = 0; k < TILE_K; k += 16) {
        Quad y[FRAGS_N];
        #pragma unroll
        for (int i = 0; i < FRAGS_N; i++) y[i] = quad<TileB, B_ALONG_K>(b, col + column(i, g), k, t);
        #pragma unroll
        for (int i = 0; i < FRAGS_M; i++) {
            Quad x[2];
            x[0] = quad<TileA, A_ALONG_K>(a, row + i * 16 + g, k, t);
            x[1] = quad<TileA, A_ALONG_K>(a, row + i * 16 + g + 8, k, t);
            multiply_quads(acc[i], x, y);
        }
    }
}

#elif FORM == F64

// d += a b, 8 x 8 x 4.
DEVICE void multiply_f64(double* d, double a, double b) {
    asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0,%1}, {%2}, {%3}, {%0,%1};"
                 : "+d"(d[0]), "+d"(d[1]) : "d"(a), "d"(b));
}

DEVICE void multiply_tile(double (*acc)[FRAGS_N][4], double (*)[4], const IN* a, const IN* b, int row, int col) {
    int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    #pragma unroll
    for (int k = 0; k < TILE_K; k += 4) {
        double x[FRAGS_M][2];
        #pragma unroll
        for (int i = 0; i < 2 * FRAGS_M; i++) x[i / 2][i % 2] = a[TileA::place_of(row + i * 8 + g, k + t)];
        #pragma unroll
        for (int l = 0; l < FRAGS_N; l++) {
            double y = b[TileB::place_of(col + column(l, g), k + t)];
            #pragma unroll
            for (int i = 0; i < 2 * FRAGS_M; i++) multiply_f64(acc[i / 2][l] + i % 2 * 2, x[i / 2][i % 2], y);
        }
    }
}

#else

// The line, within a fragment of 16 lines (rows of A, columns of B) by 16 along k, of row `line` of the 8 x 8 matrix
// in register `r`; and the start of that matrix along k. The instruction orders A's matrices by lines first, and B's
// by k first.
template <bool OF_B> DEVICE int line_of(int r, int line) { return OF_B ? column(r >> 1, line) : (r & 1) * 8 + line; }
template <bool OF_B> DEVICE int depth_of(int r) { return (OF_B ? r & 1 : r >> 1) * 8; }

template <bool OF_B, bool ALONG_K, typename TILE> DEVICE void fragment(u32* r, const IN* tile, int line, int k) {
    int lane = threadIdx.x & 31, which = lane >> 3, within = lane & 7;
    k += depth_of<OF_B>(which);
    if (ALONG_K) load_matrices(r, tile + TILE::place_of(line + line_of<OF_B>(which, within), k));
    else load_matrices_transposed(r, tile + TILE::place_of(line + line_of<OF_B>(which, 0), k + within));
}

// The same for f32, rounded: a lane holds two adjacent numbers along k of a line.
template <bool OF_B, bool ALONG_K, typename TILE> DEVICE void fragment(u32* r, const f32_t* tile, int line, int k) {
    int lane = threadIdx.x & 31;
    k += (lane & 3) * 2;
    #pragma unroll
    for (int i = 0; i < 4; i++) {
        int at = line + line_of<OF_B>(i, lane >> 2), depth = k + depth_of<OF_B>(i);
        vec<float, 2> x;
        if (ALONG_K) {
            x = load<2>(tile + TILE::place_of(at, depth));
        } else {
            x.at[0] = tile[TILE::place_of(at, depth)];
            x.at[1] = tile[TILE::place_of(at, depth + 1)];
        }
        r[i] = FORM == F16 ? pack_f16(x.at[0], x.at[1]) : pack_bf16(x.at[0], x.at[1]);
    }
}

DEVICE void multiply_fragment(float* d, const u32* a, const u32* b) {
    if (FORM == F16) multiply_f16(d, a, b);
    else multiply_bf16(d, a, b);
}

// Where `sums` is not null, each row of A is also multiplied by ones.
DEVICE void multiply_tile(
    float (*acc)[FRAGS_N][4], float (*sums)[4], const A_TYPE* a, const B_TYPE* b, int row, int col
) {
    const u32 one = FORM == F16 ? 0x3c003c00 : 0x3f803f80, ones[2] = {one, one};
    #pragma unroll
    for (int k = 0; k < TILE_K; k += 16) {
        u32 x[FRAGS_M][4], y[FRAGS_N / 2][4];
        #pragma unroll
        for (int i = 0; i < FRAGS_M; i++) fragment<false, A_ALONG_K, TileA>(x[i], a, row + i * 16, k);
        #pragma unroll
        for (int i = 0; i < FRAGS_N / 2; i++) fragment<true, B_ALONG_K, TileB>(y[i], b, col + i * 16, k);
        #pragma unroll
        for (int i = 0; i < FRAGS_M; i++) {
            #pragma unroll
            for (int l = 0; l < FRAGS_N; l++) multiply_fragment(acc[i][l], x[i], y[l / 2] + l % 2 * 2);
            if (sums) multiply_fragment(sums[i], x[i], ones);
        }
    }
}

#endif
