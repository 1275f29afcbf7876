//! Cross entropy with weights of classes, with ignored rows, and row by row: a composition.

use super::{Reduction, result};
use crate::error::{Error, Result};
use crate::tensor::{Tensor, check_devices};

/// The options of [`Tensor::cross_entropy_with`].
#[derive(Clone, Copy, Debug, Default)]
pub struct CrossEntropyOptions<'a> {
    /// The share of the target that is spread evenly over all classes, from 0 to 1.
    pub label_smoothing: f64,
    /// A weight for each class, `[classes]`, in the dtype of the logits. Without it, each is 1.
    pub weights: Option<&'a Tensor>,
    /// Rows with this id are ignored.
    pub ignore_index: Option<i64>,
    /// What becomes of the losses of rows. The mean is weighted by the classes; without one, ignored rows are 0.
    pub reduction: Reduction,
}

impl Tensor {
    /// [`Tensor::cross_entropy`] with options, as in PyTorch: weights of classes, an id whose rows are ignored, and the
    /// losses of the rows or their sum instead of the mean.
    ///
    /// It is composed of [`Tensor::log_softmax`], [`Tensor::gather`] and sums, and keeps as many numbers as there are logits;
    /// [`Tensor::cross_entropy`] and [`Tensor::cross_entropy_smoothed`] take one pass and keep two for a row. f16 and bf16 are
    /// computed in f32.
    ///
    /// # Errors
    /// As [`Tensor::cross_entropy`]; also if the weights have another shape or dtype.
    ///
    /// ```
    /// use refrain::{CrossEntropyOptions, Device, Reduction, Tensor};
    /// let device = Device::cpu();
    /// let logits = Tensor::from_slice(&[0.0f32; 6], [3, 2], &device)?;
    /// let ids = Tensor::from_slice(&[1i64, -100, 0], [3], &device)?;
    /// let options = CrossEntropyOptions {
    ///     ignore_index: Some(-100),
    ///     reduction: Reduction::None,
    ///     ..CrossEntropyOptions::default()
    /// };
    /// let rows = logits.cross_entropy_with(&ids, &options)?.to_vec::<f32>()?;
    /// assert_eq!((rows[0], rows[1]), (2f32.ln(), 0.0));
    /// # Ok::<(), refrain::Error>(())
    /// ```
    pub fn cross_entropy_with(&self, ids: &Tensor, options: &CrossEntropyOptions<'_>) -> Result<Tensor> {
        const OP: &str = "cross_entropy";
        let &CrossEntropyOptions { label_smoothing: smoothing, weights, ignore_index, reduction } = options;
        self.require_float(OP)?;
        check_devices(OP, &[self, ids])?;
        if !(0.0..=1.0).contains(&smoothing) {
            let message = format!("label smoothing is {smoothing}; use a number from 0 to 1");
            return Err(Error::invalid(OP, message));
        }
        let Some((&classes, _)) = self.dims().split_last().filter(|(_, rows)| *rows == ids.dims()) else {
            let hint = "logits must have the shape of the class ids plus one more axis for the classes";
            return Err(Error::shapes(OP, self.shape(), ids.shape(), hint));
        };
        if let Some(weights) = weights {
            check_devices(OP, &[self, weights])?;
            weights.require_dtype(OP, "weights of the classes", self.dtype())?;
            if weights.dims() != [classes] {
                let message = format!(
                    "the weights have shape {}; there must be one for each class: [{classes}]",
                    weights.shape()
                );
                return Err(Error::invalid(OP, message));
            }
        }
        let dtype = result(OP, self, self)?;
        let wide = self.dtype().accumulator();
        let rows = ids.numel();
        let ids = ids.reshape([rows])?;
        let ignored = ignore_index.map(|id| ids.eq_scalar(id as f64)).transpose()?;
        let counted = |t: &Tensor, value: f64| match &ignored {
            Some(ignored) => t.masked_fill(ignored, value),
            None => Ok(t.clone()),
        };
        let ids = counted(&ids, 0.0)?;
        let logs = self.reshape([rows, classes])?.to_dtype(wide)?.log_softmax(1)?;
        let mut losses = logs.gather(1, &ids.reshape([rows, 1])?)?.reshape([rows])?.neg()?;
        let weights = weights.map(|w| w.to_dtype(wide)).transpose()?;
        let of_rows = weights.as_ref().map(|w| w.gather(0, &ids)).transpose()?;
        if let Some(of_rows) = &of_rows {
            losses = losses.mul(of_rows)?;
        }
        if smoothing > 0.0 {
            let all = match &weights {
                Some(weights) => logs.mul(weights)?.sum(1)?,
                None => logs.sum(1)?,
            };
            losses = losses.mul_scalar(1.0 - smoothing)?.sub(&all.mul_scalar(smoothing / classes as f64)?)?;
        }
        let losses = counted(&losses, 0.0)?;
        let reduced = match reduction {
            Reduction::None => losses.reshape(&self.dims()[..self.rank() - 1])?,
            Reduction::Sum => losses.sum(())?,
            Reduction::Mean => {
                let of_rows = match of_rows {
                    Some(of_rows) => of_rows,
                    None => Tensor::ones([rows], wide, self.device())?,
                };
                losses.sum(())?.div(&counted(&of_rows, 0.0)?.sum(())?)?
            }
        };
        reduced.to_dtype(dtype)
    }
}
