//! The checksum of a checkpoint.

use safetensors::tensor::TensorView;
use sha2::{Digest, Sha256};

/// SHA-256, in lower-case hexadecimal digits, over the text of the state and then, in ascending order of their names, over
/// all tensors: name, dtype (`F32`, ...), shape, bytes. Before each of these stands its length, and before the tensors and
/// the sizes of a shape their number, as little-endian 64-bit integers; so are sizes themselves.
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
