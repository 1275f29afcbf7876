// The adjoint: y [time, channels] at (t, c) is the sum of x [count, channels, length] at (b, c, t - starts[b]), over
// all windows b that contain t, in order, plus y if ADD. A bad start is reported and its window is ignored. A block
// processes STEPS time steps of CHANNELS channels. It searches for the windows that overlap them, MOST at a time.
// Constants: ID, dtype of the starts; ELEMENT, ADD.

#define STEPS 64
#define CHANNELS 4
#define THREADS (STEPS * CHANNELS)
#define WARPS (THREADS / 32)
#define MOST 1024

typedef arithmetic<ELEMENT>::type C;

KERNEL(add_windows, AddWindowsArgs, p) {
    const ELEMENT* x = p.x;
    ELEMENT* y = p.y;
    const i64 time = p.time, channels = p.channels, count = p.count, length = p.length;
    __shared__ u32 list[MOST];
    __shared__ i64 begins[MOST];
    __shared__ u32 found[WARPS];
    const u32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const i64 groups = (channels + CHANNELS - 1) / CHANNELS;
    const i64 first_t = (i64)(blockIdx.x / groups) * STEPS;
    const i64 t = first_t + threadIdx.x % STEPS;
    const i64 c = (i64)(blockIdx.x % groups) * CHANNELS + threadIdx.x / STEPS;
    const bool inside = t < time && c < channels;
    C sum = inside && ADD ? to<C>(y[t * channels + c]) : (C)0;
    for (i64 base = 0; base < count; base += MOST) {
        // The windows of a warp are adjacent.
        bool hit[MOST / THREADS];
        i64 begin[MOST / THREADS];
        u32 hits[MOST / THREADS], mine = 0;
        #pragma unroll
        for (int k = 0; k < MOST / THREADS; k++) {
            i64 b = base + warp * (MOST / WARPS) + k * 32 + lane;
            begin[k] = b < count ? p.starts[b] : -1;
            const bool fits = begin[k] >= 0 && begin[k] <= time - length;
            if (blockIdx.x == 0 && b < count && !fits) report(p.faults, begin[k], time - length + 1);
            hit[k] = fits && begin[k] < first_t + STEPS && begin[k] + length > first_t;
            hits[k] = __ballot_sync(FULL, hit[k]);
            mine += __popc(hits[k]);
        }
        __syncthreads();
        if (lane == 0) found[warp] = mine;
        __syncthreads();
        u32 at = 0, all = 0;
        #pragma unroll
        for (int w = 0; w < WARPS; w++) {
            if (w < warp) at += found[w];
            all += found[w];
        }
        #pragma unroll
        for (int k = 0; k < MOST / THREADS; k++) {
            if (hit[k]) {
                u32 to_list = at + __popc(hits[k] & ((1u << lane) - 1));
                list[to_list] = (u32)(warp * (MOST / WARPS) + k * 32 + lane);
                begins[to_list] = begin[k];
            }
            at += __popc(hits[k]);
        }
        __syncthreads();
        if (inside) {
            for (u32 i = 0; i < all; i++) {
                i64 l = t - begins[i];
                if (l >= 0 && l < length) sum += to<C>(x[((base + list[i]) * channels + c) * length + l]);
            }
        }
    }
    if (inside) y[t * channels + c] = from<ELEMENT>(sum);
}
