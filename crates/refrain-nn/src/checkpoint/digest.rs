//! The checksum of a checkpoint.

use safetensors::tensor::TensorView;
use sha2::{Digest, Sha256};

/// The checksum: SHA-256 in lower-case hexadecimal digits. The hash covers the text of the state, and then each
/// tensor (in ascending order of names): its name, dtype (`F32`, ...), shape and bytes. Each of these texts and byte
/// strings is preceded by its length. The list of tensors and each shape are preceded by their number of items. All
/// numbers are little-endian 64-bit integers.
pub(super) fn digest(state: &str, mut tensors: Vec<(&str, &TensorView<'_>)>) -> String {
    tensors.sort_by_key(|(name, _)| *name);
    let mut hash = Sha256::new();
    let number = |hash: &mut Sha256, number: usize| hash.update((number as u64).to_le_bytes());
    let text = |hash: &mut Sha256, bytes: &[u8]| {
        number(hash, bytes.len());
        hash.update(bytes);
    };
    text(&mut hash, state.as_bytes());
    number(&mut hash, tensors.len());
    for (name, view) in tensors {
        text(&mut hash, name.as_bytes());
        text(&mut hash, view.dtype().to_string().as_bytes());
        number(&mut hash, view.shape().len());
        view.shape().iter().for_each(|&size| number(&mut hash, size));
        text(&mut hash, view.data());
    }
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}
