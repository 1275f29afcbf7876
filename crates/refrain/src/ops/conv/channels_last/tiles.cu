// Convolutions of numbers of 16 bits or of TF32 whose images lie with their channels last: in pieces of 16 bytes, filled with zeros.
// Groups of warps multiply them if GROUPS, otherwise warps alone. Constants, beside those of forms.cu and taps.cu: GROUPS, STAGES (tiles
// of both operands in shared memory).

constexpr int PIECE = 16 / (int)sizeof(IN);
static_assert((FORM == F16 || FORM == BF16 || FORM == TF32) && TILE_K == 8 * PIECE, "what is multiplied");
static_assert(STAGES >= 2, "tiles are fetched while others are multiplied");

typedef Swizzled<IN, A_ALONG_K, TILE_M, false> TileA;
// Warps alone read columns in the order of `column`; for groups they are stored in it.
typedef Swizzled<IN, B_ALONG_K, TILE_N, B_ALONG_K && GROUPS && PAIRED> TileB;
constexpr int STAGE_BYTES = TileA::BYTES + TileB::BYTES;

// The first row and column of a warp's part of the block's tile. Groups have four warps that follow each other.
DEVICE int first_row() { return (threadIdx.x >> 5) % WARPS_M * (FRAGS_M * 16); }
DEVICE int first_column() { return (threadIdx.x >> 5) / WARPS_M * (FRAGS_N * 8); }

// The channel and the tap (by its number, and down and across) of the numbers that a thread copies, tile after tile.
struct Walk {
    int channel, tap, i, j;
    DEVICE Walk(int k, int channels, int across) : channel(k), tap(0), i(0), j(0) { settle(channels, across); }
    DEVICE void advance(int by, int channels, int across) {
        channel += by;
        settle(channels, across);
    }
    DEVICE void settle(int channels, int across) {
        while (channel >= channels) {
            channel -= channels, tap++;
            if (++j == across) j = 0, i++;
        }
    }
};
