//! How much memory an input asks for.
#![allow(unsafe_code)] // A global allocator is unsafe to implement; this one passes on to the system's, or refuses.

use std::alloc::{GlobalAlloc, Layout, System};
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Bytes in use, and the most since [`watch`] was called, those that were refused included.
static LIVE: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

/// No more is given than this in all: the machine that tries inputs stays usable.
const REFUSED: usize = 4 << 30;

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Takes note of so many more bytes; whether they may be given.
fn count(bytes: usize) -> bool {
    let live = LIVE.fetch_add(bytes, Relaxed).saturating_add(bytes);
    MOST.fetch_max(live, Relaxed);
    let given = live < REFUSED;
    if !given {
        LIVE.fetch_sub(bytes, Relaxed);
    }
    given
}

// SAFETY: what is given is the system's, and a null pointer says that nothing is.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if count(layout.size()) { unsafe { System.alloc(layout) } } else { ptr::null_mut() }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if count(layout.size()) { unsafe { System.alloc_zeroed(layout) } } else { ptr::null_mut() }
    }

    unsafe fn dealloc(&self, address: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Relaxed);
        unsafe { System.dealloc(address, layout) }
    }

    unsafe fn realloc(&self, address: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if !count(size) {
            return ptr::null_mut();
        }
        LIVE.fetch_sub(layout.size(), Relaxed);
        unsafe { System.realloc(address, layout, size) }
    }
}

/// Begins to watch: what is in use now.
pub fn watch() -> usize {
    let live = LIVE.load(Relaxed);
    MOST.store(live, Relaxed);
    live
}

/// The most bytes in use or asked for since then.
pub fn most() -> usize {
    MOST.load(Relaxed)
}
