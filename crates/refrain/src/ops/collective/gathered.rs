//! Bytes of all ranks, on each host.

use super::*;

/// The bytes that each rank gives, by rank. Lengths may differ. All ranks must call this at the same place.
pub(crate) fn gather_bytes(
    communicator: &Communicator,
    what: &'static str,
    bytes: &[u8],
) -> Result<Vec<Vec<u8>>> {
    if communicator.is_of_hosts() {
        return communicator.exchange(what, what, bytes);
    }
    let device = communicator.device();
    let gathered = |values: &[i64]| -> Result<Vec<i64>> {
        communicator.all_gather(&Tensor::from_slice(values, [values.len()], device)?)?.to_vec()
    };
    let lengths = gathered(&[bytes.len() as i64])?;
    let longest = lengths.iter().copied().max().unwrap_or(0).max(1) as usize;
    let words = longest.div_ceil(size_of::<i64>());
    let mut mine = vec![0i64; words];
    bytemuck::cast_slice_mut::<i64, u8>(&mut mine)[..bytes.len()].copy_from_slice(bytes);
    let all = gathered(&mine)?;
    let of = |(part, &length): (&[i64], &i64)| {
        let bytes: &[u8] = bytemuck::cast_slice(part);
        bytes[..(length as usize).min(bytes.len())].to_vec()
    };
    Ok(all.chunks(words).zip(&lengths).map(of).collect())
}
