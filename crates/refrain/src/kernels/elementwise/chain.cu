// A chain of elementwise kernels in one loop: each element passes through all of them in registers, rounded to the dtype
// of each result on the way. Text that is written for the chain follows. It defines `elements`, from the texts of the kernels,
// each in a namespace of its own.

template <int N, typename E> DEVICE void elements(const E& e, INDEX first);

KERNEL(chain, LoopArgs, p) {
    INDEX n = (INDEX)p.n, step = (INDEX)gridDim.x * blockDim.x;
    INDEX thread = (INDEX)blockIdx.x * blockDim.x + threadIdx.x;
    for (INDEX i = thread; i < n / VEC; i += step) elements<VEC>(p.chain, i * VEC);
    // The rest, if there is only one axis.
    if (VEC > 1 && thread < n % VEC) elements<1>(p.chain, n / VEC * VEC + thread);
}
