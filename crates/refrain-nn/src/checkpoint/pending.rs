//! Values on their way from files into tensors. All are read and checked before the first tensor changes.

use refrain::{DType, Tensor, no_grad};

use super::bytes::{self, to_format};
use super::file::FileTensor;
use crate::error::{Error, Result};

/// Bytes that are checked at once: whole elements of every dtype.
const PIECE: usize = 4 << 20;

/// Bytes that are read and then checked while the processor still has them in its cache. Whole elements.
const CHECKED: usize = 256 << 10;

/// What will be written after all checks.
#[derive(Default)]
pub(super) struct Pending<'a>(Vec<(Tensor, Vec<Part<'a>>)>);

/// A tensor of a file that becomes a part of a tensor.
pub(super) struct Part<'a> {
    pub(super) name: String,
    pub(super) from: FileTensor<'a>,
    /// Its first element's place.
    pub(super) first: usize,
}

impl<'a> Pending<'a> {
    /// `to` gets these parts, which are in ascending order, and zeros between them.
    pub(super) fn add(&mut self, to: Tensor, parts: Vec<Part<'a>>) {
        self.0.push((to, parts));
    }

    /// Reads the values into new memory of each tensor's device, and then copies them there. If there is not enough memory, the
    /// file is read twice: once for the checks.
    pub(super) fn write(self) -> Result<()> {
        match self.read() {
            Ok(all) => no_grad(|| all.iter().try_for_each(|(to, new)| to.copy_from(new)))?,
            Err(Error::Tensor { error: refrain::Error::OutOfMemory { .. }, .. }) => {
                self.check()?;
                self.check_unchanged()?;
                for (to, parts) in &self.0 {
                    no_grad(|| to.write_pieces(|at, piece| fill(parts, to.dtype(), at, piece)))?;
                }
                self.check_unchanged()?;
            }
            Err(e) => return Err(e),
        }
        Ok(())
    }

    /// The new values of each tensor.
    fn read(&self) -> Result<Vec<(&Tensor, Tensor)>> {
        let read = |(to, parts): &(Tensor, Vec<Part<'_>>)| -> Result<Tensor> {
            let new = Tensor::zeros(to.shape(), to.dtype(), to.device())?;
            new.write_pieces(|at, piece| fill(parts, to.dtype(), at, piece))?;
            Ok(new)
        };
        let new = self.0.iter().map(|run| Ok((&run.0, read(run)?))).collect::<Result<_>>()?;
        self.check_unchanged()?;
        Ok(new)
    }

    fn check_unchanged(&self) -> Result<()> {
        let mut parts = self.0.iter().flat_map(|(_, parts)| parts);
        parts.try_for_each(|part| part.from.check_unchanged())
    }

    fn check(&self) -> Result<()> {
        let mut piece = Vec::new();
        for (to, parts) in &self.0 {
            let bytes = to.numel() * to.dtype().size();
            for at in (0..bytes).step_by(PIECE) {
                piece.resize(PIECE.min(bytes - at), 0);
                fill(parts, to.dtype(), at, &mut piece)?;
            }
        }
        Ok(())
    }
}

/// Fills a piece of a tensor, from byte `at` on.
fn fill(parts: &[Part<'_>], dtype: DType, at: usize, piece: &mut [u8]) -> Result<()> {
    let size = dtype.size();
    let (begin, end) = (at / size, (at + piece.len()) / size);
    let mut filled = 0;
    let skipped = parts.partition_point(|part| part.end() <= begin);
    for part in parts[skipped..].iter().take_while(|part| part.first < end) {
        let (from, to) = (part.first.max(begin), part.end().min(end));
        let (start, stop) = ((from - begin) * size, (to - begin) * size);
        piece[filled..start].fill(0);
        part.read(from - part.first, dtype, &mut piece[start..stop])?;
        filled = stop;
    }
    piece[filled..].fill(0);
    Ok(())
}

impl Part<'_> {
    fn end(&self) -> usize {
        self.first + self.from.shape().iter().product::<usize>()
    }

    /// Reads elements from the one with number `first` on, in the dtype of the model.
    fn read(&self, first: usize, dtype: DType, into: &mut [u8]) -> Result<()> {
        let own = self.from.dtype();
        let refuse = |element: usize, value: f64, why: String| {
            let (element, name) = (first + element, &self.name);
            Err(Error::checkpoint(
                self.from.path(),
                format!("element {element} of tensor `{name}` is {value:?}{why}"),
            ))
        };
        let not_finite = "; training diverged or the file was changed; use an earlier file";
        if own == to_format(dtype) {
            for (i, part) in into.chunks_mut(CHECKED).enumerate() {
                self.from.read(first * dtype.size() + i * CHECKED, part)?;
                if let Some((element, value)) = bytes::not_finite(own, part) {
                    return refuse(i * CHECKED / dtype.size() + element, value, not_finite.to_owned());
                }
            }
            return Ok(());
        }
        let mut stored = vec![0; into.len() / dtype.size() * (own.bitsize() / 8)];
        self.from.read(first * (own.bitsize() / 8), &mut stored)?;
        if let Some((element, value)) = bytes::not_finite(own, &stored) {
            return refuse(element, value, not_finite.to_owned());
        }
        match bytes::convert(own, &stored, dtype, into) {
            Some((element, value)) => refuse(
                element,
                value,
                format!(", which {dtype} can't hold; build the model in the dtype of the file"),
            ),
            None => Ok(()),
        }
    }
}
