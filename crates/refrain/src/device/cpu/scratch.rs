//! Scratch memory of CPU kernels. It is kept between calls: small buffers for each thread, large ones for all threads
//! together.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytemuck::{Pod, Zeroable};

/// Buffers start at a cache line, so that no SIMD register straddles two lines.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
struct CacheLine([u8; 64]);

thread_local! {
    /// Free buffers of this thread. It is a stack, because a thread of the pool of users' kernels that waits may run a task of another
    /// kernel meanwhile.
    static FREE: RefCell<Vec<Vec<CacheLine>>> = const { RefCell::new(Vec::new()) };
}

/// Free large buffers. Kernels take them before they split their work, and some tasks one each, so that there are a few for each thread
/// at most.
static LARGE: Mutex<Vec<Vec<CacheLine>>> = Mutex::new(Vec::new());

/// Cache lines in the largest small buffer: half a megabyte.
const SMALL: usize = (1 << 19) / size_of::<CacheLine>();
/// As many small buffers as a kernel needs together with a task that its thread runs while it waits.
const RESERVED: usize = 16;

/// Gives this thread small buffers before it needs any. Which thread runs which task is random, and no thread should
/// have to allocate when everything has been running for a long time.
pub(super) fn reserve() {
    // On most systems, memory that is never written takes only address space.
    let buffers = std::iter::repeat_with(|| Vec::with_capacity(SMALL)).take(RESERVED);
    FREE.with_borrow_mut(|free| free.extend(buffers));
}

fn large() -> MutexGuard<'static, Vec<Vec<CacheLine>>> {
    LARGE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The large buffer that fits best: the smallest that is large enough, or else the largest, which will grow.
fn take_large(count: usize) -> Vec<CacheLine> {
    let mut free = large();
    let by_fit = |i: &usize| {
        let capacity = free[*i].capacity();
        (capacity < count, capacity.abs_diff(count))
    };
    match (0..free.len()).min_by_key(by_fit) {
        Some(best) => free.swap_remove(best),
        None => Vec::new(),
    }
}

/// `len` elements of scratch memory. When this is dropped, the memory is kept for the next use.
///
/// It allocates only if more is needed than ever before at the same depth of nesting.
pub struct Scratch<T> {
    lines: Vec<CacheLine>,
    len: usize,
    element: PhantomData<T>,
}

impl<T: Pod> Scratch<T> {
    /// Scratch memory with unspecified content.
    pub fn new(len: usize) -> Scratch<T> {
        let count = (len * size_of::<T>()).div_ceil(size_of::<CacheLine>());
        let mut lines = match count {
            0 => Vec::new(),
            _ if count > SMALL => take_large(count),
            _ => FREE.with_borrow_mut(Vec::pop).unwrap_or_else(|| Vec::with_capacity(SMALL)),
        };
        if lines.len() < count {
            lines.resize(count, CacheLine::zeroed());
        }
        Scratch { lines, len, element: PhantomData }
    }

    /// Scratch memory filled with one value.
    pub fn filled(len: usize, value: T) -> Scratch<T> {
        let mut scratch = Scratch::new(len);
        scratch.fill(value);
        scratch
    }

    /// Scratch memory with the items of an iterator, at most `len`.
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
        if lines.capacity() == 0 {
            return;
        }
        if lines.capacity() > SMALL {
            return large().push(lines);
        }
        // A thread that is ending does not keep it.
        let _ = FREE.try_with(|free| free.borrow_mut().push(lines));
    }
}

/// Calls `f` with `len` elements of scratch memory with unspecified content.
pub fn with_scratch<T: Pod, R>(len: usize, f: impl FnOnce(&mut [T]) -> R) -> R {
    f(&mut Scratch::new(len))
}
