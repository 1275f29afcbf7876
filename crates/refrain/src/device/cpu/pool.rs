//! Host memory that is kept for reuse.
#![allow(unsafe_code)] // Asks the system for aligned memory.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::device::driver::Block;
use crate::error::{Error, Result};

/// The size of a cache line, and of the widest SIMD register.
const ALIGNMENT: usize = 64;

/// Free blocks by size. They are reused before the system is asked for more.
#[derive(Default)]
pub(in crate::device) struct Pool {
    free: Mutex<HashMap<usize, Vec<Block>>>,
    pooled: AtomicUsize,
    from_system: AtomicU64,
}

/// The size to which a request is rounded up: at most an eighth more, so that tensors of similar size can reuse each
/// other's blocks.
fn rounded(bytes: usize) -> usize {
    let bytes = bytes.max(ALIGNMENT);
    let step = (bytes.next_power_of_two() / 16).max(ALIGNMENT);
    bytes.div_ceil(step) * step
}

impl Pool {
    pub(in crate::device) fn alloc(&self, bytes: usize) -> Result<Block> {
        let refused = || Error::OutOfMemory {
            device: "cpu".to_string(),
            requested: bytes,
            live: 0,
            pooled: 0,
            free: None,
        };
        if bytes > isize::MAX as usize / 2 {
            return Err(refused());
        }
        let size = rounded(bytes);
        if let Some(block) = self.lock().get_mut(&size).and_then(Vec::pop) {
            self.pooled.fetch_sub(size, Ordering::Relaxed);
            return Ok(block);
        }
        let layout = Layout::from_size_align(size, ALIGNMENT).map_err(|_| refused())?;
        // SAFETY: the layout's size is not zero. Zeroed memory, so that a block always holds
        // initialised bytes and slices of it are sound whatever was written so far.
        let address = unsafe { alloc_zeroed(layout) };
        if address.is_null() {
            return Err(refused());
        }
        self.from_system.fetch_add(1, Ordering::Relaxed);
        Ok(Block { address: address.expose_provenance(), bytes: size })
    }

    pub(in crate::device) fn free(&self, block: Block) {
        self.pooled.fetch_add(block.bytes, Ordering::Relaxed);
        self.lock().entry(block.bytes).or_default().push(block);
    }

    pub(in crate::device) fn trim(&self) -> usize {
        let blocks: Vec<Block> = self.lock().drain().flat_map(|(_, blocks)| blocks).collect();
        let mut bytes = 0;
        for block in blocks {
            bytes += block.bytes;
            // SAFETY: the block came from `alloc` with this size and alignment, and lay in the free
            // list, so nothing refers to it.
            unsafe {
                dealloc(
                    std::ptr::with_exposed_provenance_mut(block.address),
                    Layout::from_size_align_unchecked(block.bytes, ALIGNMENT),
                );
            }
        }
        self.pooled.fetch_sub(bytes, Ordering::Relaxed);
        bytes
    }

    pub(in crate::device) fn pooled_bytes(&self) -> usize {
        self.pooled.load(Ordering::Relaxed)
    }

    pub(in crate::device) fn system_allocations(&self) -> u64 {
        self.from_system.load(Ordering::Relaxed)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<usize, Vec<Block>>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.trim();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_freed_block_is_handed_out_again() {
        let pool = Pool::default();
        let block = pool.alloc(1000).unwrap();
        let address = block.address;
        assert_eq!(address % ALIGNMENT, 0);
        pool.free(block);
        let again = pool.alloc(1001).unwrap();
        assert_eq!(again.address, address);
        assert_eq!((pool.system_allocations(), pool.pooled_bytes()), (1, 0));
        pool.free(again);
        assert_eq!(pool.trim(), rounded(1000));
        assert_eq!(pool.pooled_bytes(), 0);
    }

    #[test]
    fn rounding_wastes_at_most_an_eighth() {
        for bytes in (512..5_000_000).step_by(997) {
            let r = rounded(bytes);
            assert!(r >= bytes && r <= bytes + bytes / 8 + ALIGNMENT, "{bytes} -> {r}");
        }
    }
}
