// Elements added to picked places: y, along an axis, is the sum of the sources whose index names the place, in the
// order of the index, on top of `base` (where BASE; it may be y itself). Out of range is reported and nobody's.
// Each place looks through the entries that can name it (add), or the entries are sorted by the place that they
// name (begin, keys, the sort, add_runs). Constants: ELEMENT; INDEX; ID, the dtype of the index; BASE; RANK, the
// number of axes.

#define WARP 32
// From so many entries on, the whole warp sums a place.
#define LONG 32

typedef arithmetic<ELEMENT>::type C;

// Sums wrap around in integers.
DEVICE i64 plus(i64 a, i64 b) { return (i64)((u64)a + (u64)b); }
DEVICE float plus(float a, float b) { return a + b; }
DEVICE double plus(double a, double b) { return a + b; }
struct Plus { DEVICE C operator()(C a, C b) const { return plus(a, b); } };

struct Places {
    u64 base, source, index, y;
    // Places; entries.
    i64 n, entries;
    // Of the axis: the size and the stride in y, the number of entries of a column and their stride.
    i64 size, stride, rows, row_stride;
    Faults faults;
    // Axis by axis: the shape that is walked through, how far it is inside the other one, and the other one's
    // strides. Of y and the index for `add`, of the index and y for `keys`.
    i64 shape[RANK], inside[RANK], strides[RANK];
};

DEVICE bool check(const Places& p, i64 i) {
    const bool fits = (u64)i < (u64)p.size;
    if (!fits) p.faults.report(i, p.size);
    return fits;
}

KERNEL add(const __grid_constant__ Places p) {
    const ELEMENT* base = reinterpret_cast<const ELEMENT*>(p.base);
    const ELEMENT* source = reinterpret_cast<const ELEMENT*>(p.source);
    const ID* index = reinterpret_cast<const ID*>(p.index);
    ELEMENT* y = reinterpret_cast<ELEMENT*>(p.y);
    const INDEX step = (INDEX)gridDim.x * blockDim.x;
    for (INDEX at = (INDEX)blockIdx.x * blockDim.x + threadIdx.x; at < (INDEX)p.n; at += step) {
        INDEX rest = at;
        u64 column = 0;
        bool inside = true;
        #pragma unroll
        for (int d = RANK - 1; d >= 0; d--) {
            INDEX size = (INDEX)p.shape[d], q = rest / size, i = rest - q * size;
            inside = inside && i < (INDEX)p.inside[d];
            column += (u64)i * p.strides[d];
            rest = q;
        }
        const i64 place = at / (INDEX)p.stride % (INDEX)p.size;
        C sum = BASE ? to<C>(base[at]) : (C)0;
        // The place at 0 checks the entries of its column.
        if (inside) {
            i64 r = 0;
            for (; r + 4 <= p.rows; r += 4) {
                i64 named[4];
                #pragma unroll
                for (int k = 0; k < 4; k++) named[k] = index[column + (r + k) * p.row_stride];
                #pragma unroll
                for (int k = 0; k < 4; k++) {
                    if (named[k] == place) sum = plus(sum, to<C>(source[column + (r + k) * p.row_stride]));
                    else if (place == 0) check(p, named[k]);
                }
            }
            for (; r < p.rows; r++) {
                u64 e = column + r * p.row_stride;
                if (index[e] == place) sum = plus(sum, to<C>(source[e]));
                else if (place == 0) check(p, index[e]);
            }
        }
        y[at] = from<ELEMENT>(sum);
    }
}

KERNEL begin(const ELEMENT* base, ELEMENT* y, i64 n) {
    for (i64 at = (i64)blockIdx.x * blockDim.x + threadIdx.x; at < n; at += (i64)gridDim.x * blockDim.x) {
        y[at] = BASE ? base[at] : from<ELEMENT>((C)0);
    }
}

// Keys of the sort: places in y, and behind them what is out of range.
KERNEL keys(const __grid_constant__ Places p, u32* keys) {
    const ID* index = reinterpret_cast<const ID*>(p.index);
    const INDEX step = (INDEX)gridDim.x * blockDim.x;
    for (INDEX at = (INDEX)blockIdx.x * blockDim.x + threadIdx.x; at < (INDEX)p.entries; at += step) {
        i64 i = index[at];
        INDEX rest = at;
        u64 place = (u64)i * p.stride;
        #pragma unroll
        for (int d = RANK - 1; d >= 0; d--) {
            INDEX size = (INDEX)p.shape[d], q = rest / size;
            place += (u64)(rest - q * size) * p.strides[d];
            rest = q;
        }
        keys[at] = check(p, i) ? (u32)place : (u32)p.n;
    }
}

// The thread at the first entry of a place sums it; the whole warp where there are many.
KERNEL add_runs(const u32* keys, const u32* sorted, const ELEMENT* source, ELEMENT* y, i64 n, i64 entries) {
    const i64 at = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    const u32 lane = threadIdx.x & 31;
    const u32 key = at < entries ? keys[at] : (u32)n;
    const bool head = at < entries && key < n && (at == 0 || keys[at - 1] != key);
    i64 end = at + 1;
    if (head) while (end < entries && end < at + LONG && keys[end] == key) end++;
    const bool many = head && end == at + LONG;
    if (head && !many) {
        C sum = to<C>(y[key]);
        for (i64 e = at; e < end; e++) sum = plus(sum, to<C>(source[sorted[e]]));
        y[key] = from<ELEMENT>(sum);
    }
    u32 left = __ballot_sync(FULL, many);
    while (left != 0) {
        const int leader = __ffs(left) - 1;
        left &= left - 1;
        const u32 place = __shfl_sync(FULL, key, leader);
        C sum = (C)0;
        for (i64 e = at + leader;; e += WARP) {
            bool mine = e < entries && keys[e] == place;
            if (mine) sum = plus(sum, to<C>(source[sorted[e]]));
            if (!__all_sync(FULL, mine)) break;
        }
        sum = warp_reduce<32>(sum, Plus());
        if (lane == leader) y[place] = from<ELEMENT>(plus(to<C>(y[place]), sum));
    }
}
