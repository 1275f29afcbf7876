//! Handles all tensors of a model at once: its parameters and running statistics.

use crate::Result;
use refrain::{DType, Tensor};
use refrain_nn::Parameters;
use sha2::{Digest, Sha256};

/// Parameters and running statistics, by name.
fn tensors(parameters: &Parameters) -> impl Iterator<Item = (&str, &Tensor)> {
    parameters.iter().chain(parameters.buffers())
}

/// SHA-256 over names and f32 values. Two models with the same hash compute alike, bit for bit.
pub(crate) fn sha256(parameters: &Parameters) -> Result<String> {
    let mut hash = Sha256::new();
    for (name, tensor) in tensors(parameters) {
        hash.update((name.len() as u64).to_le_bytes());
        hash.update(name);
        let values = tensor.detach().to_dtype(DType::F32)?.to_vec::<f32>()?;
        values.iter().for_each(|value| hash.update(value.to_le_bytes()));
    }
    Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Copies of all tensors, in order.
pub(crate) fn copies(parameters: &Parameters) -> Result<Vec<Tensor>> {
    let copies = tensors(parameters).map(|(_, tensor)| tensor.detach().copy());
    Ok(copies.collect::<refrain::Result<_>>()?)
}

/// Copies them back.
pub(crate) fn restore(parameters: &Parameters, copies: &[Tensor]) -> Result<()> {
    for ((_, tensor), copy) in tensors(parameters).zip(copies) {
        tensor.detach().copy_from(copy)?;
    }
    Ok(())
}

/// Copies the tensors of one model into those of another, which has the same.
pub(crate) fn copy(from: &Parameters, to: &Parameters) -> Result<()> {
    restore(to, &tensors(from).map(|(_, tensor)| tensor.detach()).collect::<Vec<_>>())
}
