//! The checksum of a checkpoint.

use safetensors::Dtype;
use sha2::{Digest, Sha256};

/// Stands in the place of a checksum while the file is being written.
pub(super) const UNKNOWN: &str = "0000000000000000000000000000000000000000000000000000000000000000";

/// The checksum: SHA-256 in lower-case hexadecimal digits. The hash covers the text of the state, and then each
/// tensor: its name, dtype (`F32`, ...), shape and bytes. The tensors come in the order of the file; up to version 2 of
/// the format they came in the order of their names. Each of these texts and byte strings is preceded by its length. The
/// list of tensors and each shape are preceded by their number of items. All numbers are little-endian 64-bit integers.
pub(super) struct Checksum(Sha256);

impl Checksum {
    /// For a file with this state and so many tensors.
    pub(super) fn new(state: &str, tensors: usize) -> Checksum {
        let mut sum = Checksum(Sha256::new());
        sum.text(state);
        sum.number(tensors);
        sum
    }

    /// Begins a tensor. Its values follow.
    pub(super) fn tensor(&mut self, name: &str, dtype: Dtype, shape: &[usize], bytes: usize) {
        self.text(name);
        self.text(&dtype.to_string());
        self.number(shape.len());
        shape.iter().for_each(|&size| self.number(size));
        self.number(bytes);
    }

    /// The next bytes of the current tensor.
    pub(super) fn values(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    pub(super) fn finish(self) -> String {
        self.0.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn number(&mut self, number: usize) {
        self.0.update((number as u64).to_le_bytes());
    }

    fn text(&mut self, text: &str) {
        self.number(text.len());
        self.0.update(text);
    }
}
