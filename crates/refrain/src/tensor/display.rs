//! Printing tensors as NumPy does.

use std::fmt;

use super::{DType, Tensor};

/// Dimensions longer than this are shortened to their edges when the tensor is large.
const EDGE: usize = 3;
/// The largest tensor that is printed whole.
const WHOLE: usize = 1000;

/// How the elements of a tensor are written.
enum Style {
    /// Digits after the point.
    Fixed(usize),
    /// Digits after the point, and an exponent.
    Scientific(usize),
    Integer,
    Bool,
}

fn style(dtype: DType, values: &[f64]) -> Style {
    if dtype == DType::Bool {
        return Style::Bool;
    }
    if !dtype.is_float() {
        return Style::Integer;
    }
    let finite = values.iter().filter(|v| v.is_finite() && **v != 0.0).map(|v| v.abs());
    let (low, high) = finite.fold((f64::INFINITY, 0.0f64), |(l, h), v| (l.min(v), h.max(v)));
    if high >= 1e8 || (low < 1e-4 && high > 0.0) || (high > 0.0 && high / low > 1e3 && low < 1e-3) {
        return Style::Scientific(4);
    }
    // As many digits as the value needing most, four at most.
    let digits = |v: &f64| {
        (0..4).find(|&d| (v * 10f64.powi(d) - (v * 10f64.powi(d)).round()).abs() < 1e-6).unwrap_or(4) as usize
    };
    Style::Fixed(values.iter().filter(|v| v.is_finite()).map(digits).max().unwrap_or(0))
}

fn text(style: &Style, v: f64) -> String {
    match style {
        Style::Bool => (v != 0.0).to_string(),
        Style::Integer => format!("{v}"),
        _ if v.is_nan() => "nan".to_string(),
        _ if v.is_infinite() => if v > 0.0 { "inf" } else { "-inf" }.to_string(),
        Style::Fixed(0) => format!("{v:.0}."),
        Style::Fixed(d) => format!("{v:.d$}"),
        Style::Scientific(d) => format!("{v:.d$e}"),
    }
}

/// The indices shown along a dimension; `None` stands for the dots.
fn shown(n: usize, shorten: bool) -> Vec<Option<usize>> {
    if !shorten || n <= 2 * EDGE {
        return (0..n).map(Some).collect();
    }
    (0..EDGE).map(Some).chain([None]).chain((n - EDGE..n).map(Some)).collect()
}

/// Reads the shown part of a tensor: nested rows of the last dimension, in order.
fn cells(t: &Tensor, shorten: bool) -> crate::Result<Vec<f64>> {
    if t.rank() == 0 {
        // Integers beyond 2^53 lose digits on the way through f64; they are shown so.
        return t.to_dtype(DType::F64)?.to_vec();
    }
    let mut out = Vec::new();
    for i in shown(t.dims()[0], shorten).into_iter().flatten() {
        out.extend(cells(&t.select(0, i)?, shorten)?);
    }
    Ok(out)
}

fn write_block(
    f: &mut fmt::Formatter<'_>,
    dims: &[usize],
    shorten: bool,
    indent: usize,
    width: usize,
    next: &mut impl FnMut() -> String,
) -> fmt::Result {
    let Some((&n, rest)) = dims.split_first() else {
        return write!(f, "{:>width$}", next());
    };
    f.write_str("[")?;
    let mut column = indent + 1;
    for (k, i) in shown(n, shorten).into_iter().enumerate() {
        match (k > 0, rest.is_empty()) {
            (true, true) => {
                f.write_str(", ")?;
                column += 2 + width;
                if column > 76 {
                    write!(f, "\n{:1$}", "", indent + 1)?;
                    column = indent + 1;
                }
            }
            (true, false) => write!(f, ",{:\n<1$}{2:3$}", "", rest.len(), "", indent + 1)?,
            _ => {}
        }
        match i {
            Some(_) => write_block(f, rest, shorten, indent + 1, width, next)?,
            None => f.write_str("...")?,
        }
    }
    f.write_str("]")
}

impl fmt::Display for Tensor {
    /// The values as NumPy prints them, dtype and shape in a last line where they are not evident.
    ///
    /// ```
    /// use refrain::{Device, Tensor};
    /// let x = Tensor::from_slice(&[1.5f32, 2.0, -3.25, 4.0], [2, 2], &Device::cpu())?;
    /// assert_eq!(x.to_string(), "[[ 1.50,  2.00],\n [-3.25,  4.00]] f32 [2, 2]");
    /// # Ok::<(), refrain::Error>(())
    /// ```
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shorten = self.numel() > WHOLE;
        let values = match crate::no_grad(|| cells(&self.detach(), shorten)) {
            Ok(values) => values,
            Err(e) => return write!(f, "<{} {}: {e}>", self.dtype(), self.shape()),
        };
        let style = style(self.dtype(), &values);
        let texts: Vec<String> = values.iter().map(|&v| text(&style, v)).collect();
        let width = texts.iter().map(String::len).max().unwrap_or(0);
        let mut next = texts.into_iter();
        let mut next = || next.next().unwrap_or_default();
        write_block(f, self.dims(), shorten, 0, width, &mut next)?;
        write!(f, " {} {}", self.dtype(), self.shape())
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Tensor({} {}, strides {:?}, storage #{} on {})",
            self.dtype(),
            self.shape(),
            self.strides(),
            self.storage_id(),
            self.device()
        )
    }
}
