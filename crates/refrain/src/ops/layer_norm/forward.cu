// Layer norm and RMS norm of rows in registers. Constants: those of norm.cu.

// With registers for only one row, enough warps fit to keep memory busy. So weight and bias are loaded last, from the
// cache.
KERNEL(layer_norm, NormArgs, p, __launch_bounds__(256, COMPUTE_SIZE > 4 || VEC == 1 ? 1 : 4)) {
    const i64 row = row_number();
    normalise(p, row, row < p.rows, reinterpret_cast<const IN*>(p.x) + row * p.width, FromMemory(p));
}
