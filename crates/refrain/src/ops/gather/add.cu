// Each place looks through the entries that can name it. Constants, beside those of places.cu: BASE, whether there is one
// (it may be y itself); SET, whether an element replaces what is there, so that the last one remains.

DEVICE C put_on(C sum, C element) { return SET ? element : plus(sum, element); }

KERNEL(add, Places, p) {
    const ELEMENT *base = p.base, *source = p.source;
    const ID* index = p.index;
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
        // The position at 0 checks the entries of its column.
        if (inside) {
            i64 r = 0;
            for (; r + 4 <= p.rows; r += 4) {
                i64 named[4];
                #pragma unroll
                for (int k = 0; k < 4; k++) named[k] = index[column + (r + k) * p.row_stride];
                #pragma unroll
                for (int k = 0; k < 4; k++) {
                    if (named[k] == place) sum = put_on(sum, to<C>(source[column + (r + k) * p.row_stride]));
                    else if (place == 0) check(p, named[k]);
                }
            }
            for (; r < p.rows; r++) {
                u64 e = column + r * p.row_stride;
                if (index[e] == place) sum = put_on(sum, to<C>(source[e]));
                else if (place == 0) check(p, index[e]);
            }
        }
        p.y[at] = from<ELEMENT>(sum);
    }
}
