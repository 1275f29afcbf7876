// Where the entries of each place end, among entries in the order of their keys: how many keys are not above a place.

KERNEL(ends, EndsArgs, p) {
    for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < p.size; i += (i64)gridDim.x * blockDim.x) {
        u32 end = 0, left = (u32)p.count;
        while (left > 0) {
            const u32 half = left / 2;
            const bool is_before = p.keys[end + half] <= (u32)i;
            end += is_before ? half + 1 : 0;
            left = is_before ? left - half - 1 : half;
        }
        p.ends[i] = end;
    }
}
