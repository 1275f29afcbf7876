// Images with their channels last, and images as rows of pixels, as they are multiplied. Constants, beside those of forms.cu: X_TYPE,
// DY_TYPE; X_WIDE, DY_WIDE (pieces of a pixel of either that a block turns); LAST (whether the channels of images come last already);
// X_ALIGNED, DY_ALIGNED (whether as many numbers as a piece has can be loaded at once: pixels of a channel, or channels of a pixel).

constexpr int THREADS = 256, PIECE = 16 / (int)sizeof(IN);

// A number as it is laid out.
DEVICE IN laid_out(IN x) { return FORM == TF32 ? factor(to<COMPUTE>(x)) : x; }
template <typename T> DEVICE IN laid_out(T x) { return factor(to<COMPUTE>(x)); }

// COUNT neighbours, of which `there` exist; the rest is zero.
template <bool ALIGNED, int COUNT, typename T> DEVICE vec<T, COUNT> first_of(const T* at, int there) {
    if constexpr (ALIGNED) {
        return load<COUNT>(at);
    } else {
        vec<T, COUNT> x;
        #pragma unroll
        for (int i = 0; i < COUNT; i++) x.at[i] = i < there ? at[i] : from<T>((COMPUTE)0);
        return x;
    }
}

// A thread turns PIECE pixels of a piece, as many channels: it reads pixels side by side and stores channels side by side. ACROSS lanes
// have the pieces of a pixel.
template <typename T, int ACROSS, bool ALIGNED> DEVICE void lay_out(const ConvImages& p, u32 block) {
    const u32 groups = (u32)p.groups, pieces = (u32)p.pieces, all = groups * pieces, across = (all + ACROSS - 1) / ACROSS;
    const u32 pixels = (u32)p.pixels, plane = (u32)p.plane, channels = (u32)p.channels, run = block / across;
    const u32 piece = (block - run * across) * ACROSS + threadIdx.x % ACROSS;
    const u32 first = (run * (THREADS / ACROSS) + threadIdx.x / ACROSS) * PIECE;
    if (piece >= all || first >= pixels) return;
    const u32 group = piece / pieces, channel = (piece - group * pieces) * PIECE;
    const T* images = reinterpret_cast<const T*>(p.x);
    IN* y = reinterpret_cast<IN*>(p.y) + ((i64)first * all + piece) * PIECE;
    if (LAST) {
        #pragma unroll
        for (int e = 0; e < PIECE; e++) {
            if (first + e >= pixels) break;
            const T* from = images + ((i64)(first + e) * groups + group) * channels + channel;
            const vec<T, PIECE> loaded = first_of<ALIGNED, PIECE>(from, (int)(channels - channel));
            vec<IN, PIECE> x;
            #pragma unroll
            for (int c = 0; c < PIECE; c++) x.at[c] = laid_out(loaded.at[c]);
            store<PIECE>(y + (i64)e * all * PIECE, x);
        }
        return;
    }
    auto at = [&](u32 pixel) {
        const u32 image = pixel / plane;
        return images + ((i64)(image * groups + group) * channels + channel) * plane + (pixel - image * plane);
    };
    vec<IN, PIECE> x[PIECE];
    #pragma unroll
    for (int c = 0; c < PIECE; c++) {
        #pragma unroll
        for (int e = 0; e < PIECE; e++) x[c].at[e] = from<IN>((COMPUTE)0);
    }
    if (ALIGNED) {
        const T* from = at(first);
        #pragma unroll
        for (int c = 0; c < PIECE; c++) {
            if (channel + c >= channels) break;
            const vec<T, PIECE> loaded = load<PIECE>(from + (i64)c * plane);
            #pragma unroll
            for (int e = 0; e < PIECE; e++) x[c].at[e] = laid_out(loaded.at[e]);
        }
    } else {
        #pragma unroll
        for (int e = 0; e < PIECE; e++) {
            if (first + e >= pixels) break;
            const T* from = at(first + e);
            #pragma unroll
            for (int c = 0; c < PIECE; c++) if (channel + c < channels) x[c].at[e] = laid_out(from[(i64)c * plane]);
        }
    }
    #pragma unroll
    for (int e = 0; e < PIECE; e++) {
        if (!ALIGNED && first + e >= pixels) break;
        vec<IN, PIECE> turned;
        #pragma unroll
        for (int c = 0; c < PIECE; c++) turned.at[c] = x[c].at[e];
        store<PIECE>(y + (i64)e * all * PIECE, turned);
    }
}

// A block lays out RUN pixels of a channel. Their sum, before they are rounded, is a part of a bias's gradient.
constexpr int RUN = 4096;

template <typename T, bool ALIGNED> DEVICE void lay_out_row(const ConvRows& p, u32 block) {
    const u32 runs = (u32)p.runs, channel = block / runs, run = block - channel * runs, plane = (u32)p.plane, pixels = (u32)p.pixels;
    const T* images = reinterpret_cast<const T*>(p.x);
    IN* row = reinterpret_cast<IN*>(p.y) + (i64)channel * p.pitch;
    auto at = [&](u32 pixel) {
        const u32 image = pixel / plane;
        return ((i64)image * p.channels + channel) * p.plane + (pixel - image * plane);
    };
    COMPUTE sum = 0;
    #pragma unroll
    for (int i = 0; i < RUN / THREADS / PIECE; i++) {
        const u32 first = run * RUN + (i * THREADS + threadIdx.x) * PIECE;
        vec<T, PIECE> x;
        #pragma unroll
        for (int e = 0; e < PIECE; e++) x.at[e] = from<T>((COMPUTE)0);
        if (ALIGNED) {
            if (first < pixels) x = load<PIECE>(images + at(first));
        } else {
            #pragma unroll
            for (int e = 0; e < PIECE; e++) if (first + e < pixels) x.at[e] = images[at(first + e)];
        }
        vec<IN, PIECE> rounded;
        #pragma unroll
        for (int e = 0; e < PIECE; e++) {
            sum += to<COMPUTE>(x.at[e]);
            rounded.at[e] = factor(to<COMPUTE>(x.at[e]));
        }
        if (first < p.pitch) store<PIECE>(row + first, rounded);
    }
    if (!p.sums) return;
    sum = block_sum<THREADS>(sum);
    if (threadIdx.x == 0) reinterpret_cast<COMPUTE*>(p.sums)[run * p.channels + channel] = sum;
}

// More registers than four blocks have are taken by numbers that are loaded one by one.
constexpr int RESIDENT = X_ALIGNED && DY_ALIGNED ? 4 : 2;

KERNEL(conv_lay_out, ConvLayOut, p, __launch_bounds__(THREADS, RESIDENT)) {
    u32 block = blockIdx.x;
    if (block < (u32)p.images[0].blocks) return lay_out<X_TYPE, X_WIDE, X_ALIGNED>(p.images[0], block);
    block -= (u32)p.images[0].blocks;
    if (block < (u32)p.images[1].blocks) return lay_out<DY_TYPE, DY_WIDE, DY_ALIGNED>(p.images[1], block);
    block -= (u32)p.images[1].blocks;
    lay_out_row<DY_TYPE, DY_ALIGNED>(p.rows, block);
}
