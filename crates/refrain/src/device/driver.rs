//! What the engine asks of a device.

use crate::device::launch::Launch;
use crate::error::Result;

/// A piece of a device's memory.
#[derive(Debug)]
pub(crate) struct Block {
    /// Where it begins, in the device's address space.
    pub(crate) address: usize,
    /// Bytes that may be used.
    pub(crate) bytes: usize,
}

/// A kind of device. The engine is written once against this trait.
///
/// Everything is in stream order: what is asked for later happens after what was asked for earlier.
pub(crate) trait Driver: Send + Sync {
    /// The name that errors and the trace print: `cpu`, `cuda:0`.
    fn name(&self) -> String;

    /// Memory for at least `bytes` bytes. It holds initialised bytes of no particular value.
    fn alloc(&self, bytes: usize) -> Result<Block>;

    /// Takes a block back, after all work asked for so far.
    fn free(&self, block: Block);

    /// Gives memory kept for reuse back to the system; says how many bytes.
    fn trim(&self) -> usize;

    /// Bytes kept for reuse.
    fn pooled_bytes(&self) -> usize;

    /// How many times memory was asked of the system.
    fn system_allocations(&self) -> u64;

    /// Copies from the host into a block, at a byte offset.
    fn upload(&self, from: &[u8], to: &Block, offset: usize) -> Result<()>;

    /// Copies from a block to the host, after all work that writes it.
    fn download(&self, from: &Block, offset: usize, to: &mut [u8]) -> Result<()>;

    /// Runs a kernel. The door has checked the operands and holds their locks.
    fn launch(&self, launch: &Launch<'_>) -> Result<()>;
}
