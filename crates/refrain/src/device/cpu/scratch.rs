//! Working memory of the CPU's kernels, kept by each thread between calls.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

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

/// What [`reserve`] provides for: buffers, and bytes of each. The panels of a product fit, and the backward pass of
/// attention holds a dozen.
const RESERVED: (usize, usize) = (16, 1 << 21);

/// Provides this thread with buffers before it needs any: which thread takes up which task is left to
/// chance, and a thread should not find itself short of memory when all has been running for long.
/// Pages that are never written cost nothing.
pub(super) fn reserve() {
    let (buffers, bytes) = RESERVED;
    let buffer = || Vec::with_capacity(bytes / size_of::<CacheLine>());
    FREE.with_borrow_mut(|free| free.extend(std::iter::repeat_with(buffer).take(buffers)));
}

/// `len` elements of working memory, which the thread keeps for the next use when this is dropped.
///
/// Memory is allocated only when a thread asks for more than ever before at the same depth of nesting.
pub struct Scratch<T> {
    lines: Vec<CacheLine>,
    len: usize,
    element: PhantomData<T>,
}

impl<T: Pod> Scratch<T> {
    /// Working memory of unspecified content.
    pub fn new(len: usize) -> Scratch<T> {
        let count = (len * size_of::<T>()).div_ceil(size_of::<CacheLine>());
        let mut lines = FREE.with_borrow_mut(Vec::pop).unwrap_or_default();
        if lines.len() < count {
            lines.resize(count, CacheLine::zeroed());
        }
        Scratch { lines, len, element: PhantomData }
    }

    /// Working memory filled with one value.
    pub fn filled(len: usize, value: T) -> Scratch<T> {
        let mut scratch = Scratch::new(len);
        scratch.fill(value);
        scratch
    }

    /// Working memory that holds what an iterator gives, `len` elements at most.
    pub fn collect(len: usize, from: impl Iterator<Item = T>) -> Scratch<T> {
        let mut scratch = Scratch::new(len);
        scratch.iter_mut().zip(from).for_each(|(to, v)| *to = v);
        scratch
    }
}

impl<T: Pod> Deref for Scratch<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        let bytes: &[u8] = bytemuck::cast_slice(&self.lines);
        bytemuck::cast_slice(&bytes[..self.len * size_of::<T>()])
    }
}

impl<T: Pod> DerefMut for Scratch<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut self.lines);
        bytemuck::cast_slice_mut(&mut bytes[..self.len * size_of::<T>()])
    }
}

impl<T> Drop for Scratch<T> {
    fn drop(&mut self) {
        let lines = std::mem::take(&mut self.lines);
        // A thread that ends has no more use for it.
        let _ = FREE.try_with(|free| free.borrow_mut().push(lines));
    }
}

/// Calls `f` with `len` elements of working memory of unspecified content.
pub fn with_scratch<T: Pod, R>(len: usize, f: impl FnOnce(&mut [T]) -> R) -> R {
    f(&mut Scratch::new(len))
}
