//! Compiled kernels on disk.

/// FNV-1a, 64 bits: tells texts apart; it protects from nothing.
pub(super) fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |h, &b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3))
}
