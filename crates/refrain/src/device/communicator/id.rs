//! What the ranks of a new communicator find one another by.

use std::fmt;

use sha2::{Digest, Sha256};

use crate::device::cuda;
use crate::error::{Error, Result};

/// What the ranks of a new communicator of GPUs find one another by. Rank 0 makes it and sends its bytes to the other ranks,
/// by any means (a file, a socket); then all ranks call [`Communicator::new`](crate::Communicator::new) with it. Use it once.
///
/// Treat it as a secret: it contains an address at which rank 0 listens.
#[derive(Clone, PartialEq, Eq)]
pub struct CommunicatorId([u8; CommunicatorId::BYTES]);

impl CommunicatorId {
    /// How many bytes it has.
    pub const BYTES: usize = 128;

    /// A new one, from NCCL. The process that calls this must take part as rank 0.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if NCCL is missing or too old. The message says what to install.
    pub fn new() -> Result<CommunicatorId> {
        cuda::unique_id().map(CommunicatorId)
    }

    /// Its bytes, for the other ranks.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The id whose bytes rank 0 has sent.
    ///
    /// # Errors
    /// If there are not exactly [`CommunicatorId::BYTES`] bytes.
    pub fn from_bytes(bytes: &[u8]) -> Result<CommunicatorId> {
        bytes.try_into().map(CommunicatorId).map_err(|_| {
            let message = format!(
                "the id has {} bytes instead of {}; pass what CommunicatorId::as_bytes returned on rank 0",
                bytes.len(),
                CommunicatorId::BYTES
            );
            Error::invalid("communicator", message)
        })
    }

    /// A number for it, the same on all ranks.
    pub(super) fn number(&self) -> u64 {
        number_of(&self.0)
    }
}

/// A number for bytes.
pub(super) fn number_of(bytes: &[u8]) -> u64 {
    Sha256::digest(bytes).iter().take(8).fold(0, |n, &byte| n << 8 | u64::from(byte))
}

impl fmt::Debug for CommunicatorId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CommunicatorId({:016x})", self.number())
    }
}
