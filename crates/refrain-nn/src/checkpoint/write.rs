//! Writes safetensors files piece by piece: a model needs little host memory, however large it is.

use std::cell::OnceCell;
use std::cmp::Reverse;
use std::collections::HashMap;
use std::io::SeekFrom;
use std::path::Path;
use std::rc::Rc;

use refrain::{DType, Shape, Tensor};
use safetensors::tensor::{Metadata, TensorInfo};

use super::atomic::write_atomic_with;
use super::checksum::{self, Checksum};
use super::{CHECKSUM, bytes};
use crate::error::{Error, Result};

/// Up to so many bytes, the values of a tensor are read from its device at once, and else in pieces of this size.
const AT_ONCE: usize = 64 << 20;

/// Values on a device that are read for a file.
pub(super) struct Values {
    /// Contiguous, with one axis.
    flat: Tensor,
    whole: OnceCell<Vec<u8>>,
}

/// A tensor that a file will have: a run of values.
pub(super) struct Stored {
    values: Rc<Values>,
    first: usize,
    shape: Shape,
}

impl Values {
    pub(super) fn new(tensor: &Tensor) -> Result<Rc<Values>> {
        let flat = tensor.detach().contiguous()?.view(tensor.numel())?;
        Ok(Rc::new(Values { flat, whole: OnceCell::new() }))
    }

    /// The bytes of a run of elements, in order.
    fn pieces(&self, first: usize, elements: usize, mut each: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let size = self.flat.dtype().size();
        if self.flat.numel() * size <= AT_ONCE {
            let whole = match self.whole.get() {
                Some(whole) => whole,
                None => {
                    let read = bytes::read(&self.flat)?;
                    self.whole.get_or_init(|| read)
                }
            };
            return each(&whole[first * size..(first + elements) * size]);
        }
        let step = AT_ONCE / size;
        (0..elements).step_by(step).try_for_each(|at| {
            let piece = self.flat.narrow(0, first + at, step.min(elements - at))?;
            each(&bytes::read(&piece)?)
        })
    }
}

impl Stored {
    /// A run of elements, under a shape that has as many.
    pub(super) fn run(values: &Rc<Values>, first: usize, shape: &Shape) -> Stored {
        Stored { values: values.clone(), first, shape: shape.clone() }
    }

    /// A whole tensor.
    pub(super) fn of(tensor: &Tensor) -> Result<Stored> {
        Ok(Stored { values: Values::new(tensor)?, first: 0, shape: tensor.shape().clone() })
    }

    fn dtype(&self) -> DType {
        self.values.flat.dtype()
    }

    fn bytes(&self) -> usize {
        self.shape.numel() * self.dtype().size()
    }
}

/// Writes a file with these tensors and texts. If there is a `state`, the file gets its checksum.
pub(super) fn write_tensors(
    path: &Path,
    tensors: impl IntoIterator<Item = (String, Stored)>,
    mut texts: HashMap<String, String>,
    state: Option<&str>,
) -> Result<()> {
    let mut tensors: Vec<(String, Stored)> = tensors.into_iter().collect();
    // Wide dtypes first, so that every tensor begins at a multiple of its element's size.
    tensors.sort_by(|(a, x), (b, y)| (Reverse(x.dtype().size()), a).cmp(&(Reverse(y.dtype().size()), b)));
    if state.is_some() {
        texts.insert(CHECKSUM.to_owned(), checksum::UNKNOWN.to_owned());
    }
    let header = header(path, &tensors, texts)?;
    write_atomic_with(path, |file| {
        let failed = |e| Error::io("write", path)(e);
        file.write_all(&(header.len() as u64).to_le_bytes()).map_err(failed)?;
        file.write_all(header.as_bytes()).map_err(failed)?;
        let mut sum = state.map(|state| Checksum::new(state, tensors.len()));
        // Values that no further tensor needs are given back at once.
        for (name, stored) in tensors {
            let format = bytes::to_format(stored.dtype());
            sum.iter_mut().for_each(|sum| sum.tensor(&name, format, &stored.shape, stored.bytes()));
            let mut element = 0;
            stored.values.pieces(stored.first, stored.shape.numel(), |piece| {
                if let Some((at, value)) = bytes::not_finite(format, piece) {
                    let element = element + at;
                    let message = format!(
                        "element {element} of `{name}` is {value}, so nothing was written; lower the learning rate, or clip the gradient norm"
                    );
                    return Err(Error::checkpoint(path, message));
                }
                element += piece.len() / stored.dtype().size();
                sum.iter_mut().for_each(|sum| sum.values(piece));
                file.write_all(piece).map_err(failed)
            })?;
        }
        if let Some(sum) = sum
            && let Some(at) = header.find(&format!("\"{CHECKSUM}\":\"{}\"", checksum::UNKNOWN))
        {
            let place = size_of::<u64>() + at + CHECKSUM.len() + "\"\":\"".len();
            file.seek(SeekFrom::Start(place as u64)).map_err(failed)?;
            file.write_all(sum.finish().as_bytes()).map_err(failed)?;
        }
        Ok(())
    })
}

/// The header of a file. Its length is a multiple of 8, so that the values are aligned.
fn header(path: &Path, tensors: &[(String, Stored)], texts: HashMap<String, String>) -> Result<String> {
    let mut end = 0;
    let infos = tensors.iter().map(|(name, stored)| {
        let begin = end;
        end += stored.bytes();
        let dtype = bytes::to_format(stored.dtype());
        (name.clone(), TensorInfo { dtype, shape: stored.shape.to_vec(), data_offsets: (begin, end) })
    });
    let refuse = |e: &dyn std::fmt::Display| {
        Error::checkpoint(path, format!("it cannot be written in the safetensors format: {e}"))
    };
    let header = Metadata::new(Some(texts), infos.collect()).map_err(|e| refuse(&e))?;
    let mut header = serde_json::to_string(&header).map_err(|e| refuse(&e))?;
    let length = header.len().next_multiple_of(8);
    header.extend(std::iter::repeat_n(' ', length - header.len()));
    match length as u64 > super::file::LONGEST_HEADER {
        true => {
            Err(refuse(&"its header is longer than 100 MB; give the tensors shorter names, or write fewer"))
        }
        false => Ok(header),
    }
}
