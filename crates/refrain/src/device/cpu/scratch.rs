//! Working memory of the CPU's kernels, kept by each thread between calls.

use std::cell::RefCell;

use bytemuck::{Pod, Zeroable};

/// Buffers start on a cache line, so that a whole register never straddles two.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
struct CacheLine([u8; 64]);

thread_local! {
    /// Buffers of this thread that are not in use. A stack, because a thread that waits inside a kernel
    /// may run another kernel's task meanwhile.
    static FREE: RefCell<Vec<Vec<CacheLine>>> = const { RefCell::new(Vec::new()) };
}

/// Calls `f` with `len` elements of working memory of unspecified content.
///
/// Memory is allocated only when a thread asks for more than ever before at the same depth of nesting.
pub fn with_scratch<T: Pod, R>(len: usize, f: impl FnOnce(&mut [T]) -> R) -> R {
    let lines = (len * size_of::<T>()).div_ceil(size_of::<CacheLine>());
    let mut buffer = FREE.with_borrow_mut(Vec::pop).unwrap_or_default();
    if buffer.len() < lines {
        buffer.resize(lines, CacheLine::zeroed());
    }
    let result = f(&mut bytemuck::cast_slice_mut(&mut buffer[..lines])[..len]);
    FREE.with_borrow_mut(|free| free.push(buffer));
    result
}
