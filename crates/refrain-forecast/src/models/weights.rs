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

/// A hash of each tensor's f32 values, in order: the first 64 bits of SHA-256.
pub(crate) fn hashes(parameters: &Parameters) -> Result<Vec<i64>> {
    let of = |(_, tensor): (&str, &Tensor)| {
        let mut hash = Sha256::new();
        let values = tensor.detach().to_dtype(DType::F32)?.to_vec::<f32>()?;
        values.iter().for_each(|value| hash.update(value.to_le_bytes()));
        Ok(short(hash.finalize().as_slice()))
    };
    tensors(parameters).map(of).collect()
}

/// The first 64 bits of a hash.
pub(crate) fn short(hash: &[u8]) -> i64 {
    hash.iter().take(8).fold(0, |number, &byte| number << 8 | i64::from(byte))
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
