// What sums begin with. Constants: ELEMENT; BASE, whether that is `base`, else 0.

KERNEL(begin, BeginArgs, p) {
    for (i64 at = (i64)blockIdx.x * blockDim.x + threadIdx.x; at < p.n; at += (i64)gridDim.x * blockDim.x) {
        p.y[at] = BASE ? p.base[at] : from<ELEMENT>((C)0);
    }
}
