//! Prints tensors in the style of NumPy.

use std::fmt;

use crate::autograd::no_grad;
use crate::error::Result;
use crate::tensor::{DType, Element, Shape, Tensor};

/// In a large tensor, longer dimensions are shortened to this many entries at each end.
const EDGE: usize = 3;
/// The largest tensor that is printed completely.
const WHOLE: usize = 1000;

/// How floating-point elements are printed.
enum Style {
    /// Digits after the point.
    Fixed(usize),
    /// Digits after the point, and an exponent.
    Scientific(usize),
}

/// As many digits as the values need, at most four.
fn digits(values: impl Iterator<Item = f64>) -> usize {
    let of = |v: f64| (0..4).find(|&d| (v * 10f64.powi(d) - (v * 10f64.powi(d)).round()).abs() < 1e-6);
    values.map(|v| of(v).unwrap_or(4) as usize).max().unwrap_or(0)
}

fn style(values: &[f64]) -> Style {
    let finite = || values.iter().copied().filter(|v| v.is_finite());
    let sizes = finite().filter(|v| *v != 0.0).map(f64::abs);
    let (low, high) = sizes.fold((f64::INFINITY, 0.0f64), |(l, h), v| (l.min(v), h.max(v)));
    if high >= 1e8 || (low < 1e-4 && high > 0.0) || (high > 0.0 && high / low > 1e3 && low < 1e-3) {
        let significand =
            |v: f64| format!("{v:e}").split('e').next().and_then(|m| m.parse().ok()).unwrap_or(v);
        return Style::Scientific(digits(finite().map(significand)));
    }
    Style::Fixed(digits(finite()))
}

fn text(style: &Style, v: f64) -> String {
    let point = |d: usize| if d == 0 { "." } else { "" };
    match *style {
        _ if v.is_nan() => "nan".to_string(),
        _ if v.is_infinite() => if v > 0.0 { "inf" } else { "-inf" }.to_string(),
        Style::Fixed(d) => format!("{v:.d$}{}", point(d)),
        Style::Scientific(d) => {
            let text = format!("{v:.d$e}");
            let (significand, exponent) = text.split_once('e').unwrap_or((&text, "0"));
            let exponent: i32 = exponent.parse().unwrap_or(0);
            format!("{significand}{}e{}{:02}", point(d), if exponent < 0 { '-' } else { '+' }, exponent.abs())
        }
    }
}

/// The indices that are shown along a dimension; `None` stands for the dots.
fn shown(n: usize, shorten: bool) -> Vec<Option<usize>> {
    if !shorten || n <= 2 * EDGE {
        return (0..n).map(Some).collect();
    }
    (0..EDGE).map(Some).chain([None]).chain((n - EDGE..n).map(Some)).collect()
}

/// Reads the shown part of a tensor: nested rows of the last dimension, in order.
fn cells<T: Element>(t: &Tensor, shorten: bool) -> Result<Vec<T>> {
    if !shorten {
        return t.to_dtype(T::DTYPE)?.to_vec();
    }
    if t.rank() == 0 {
        return Ok(vec![t.to_dtype(T::DTYPE)?.to_scalar()?]);
    }
    let mut out = Vec::new();
    for i in shown(t.dims()[0], shorten).into_iter().flatten() {
        out.extend(cells::<T>(&t.select(0, i)?, shorten)?);
    }
    Ok(out)
}

fn texts(t: &Tensor, shorten: bool) -> Result<Vec<String>> {
    // A size of 1 leaves no choice, and there may be any number of them.
    let t = &t.reshape(t.dims().iter().copied().filter(|&d| d != 1).collect::<Shape>())?;
    if !t.dtype().is_float() {
        let values = cells::<i64>(t, shorten)?;
        let text = |v: &i64| if t.dtype() == DType::Bool { (*v != 0).to_string() } else { v.to_string() };
        return Ok(values.iter().map(text).collect());
    }
    let values = cells::<f64>(t, shorten)?;
    let style = style(&values);
    Ok(values.iter().map(|&v| text(&style, v)).collect())
}

/// Writes a text `n` times. `n` may be larger than the width of a format.
fn repeat(f: &mut fmt::Formatter<'_>, text: &str, n: usize) -> fmt::Result {
    (0..n).try_for_each(|_| f.write_str(text))
}

/// Writes the cells in brackets, row by row. It does not recurse, because a tensor may have any number of dimensions.
fn write_cells(
    f: &mut fmt::Formatter<'_>,
    dims: &[usize],
    shorten: bool,
    width: usize,
    mut next: impl Iterator<Item = String>,
) -> fmt::Result {
    let rank = dims.len();
    let shown: Vec<Vec<Option<usize>>> = dims.iter().map(|&n| shown(n, shorten)).collect();
    // The position along each dimension. Dimensions from `open` on are before their opening bracket.
    let mut at = vec![0; rank];
    let (mut open, mut column) = (0, 0);
    loop {
        let dots = open > 0 && shown[open - 1][at[open - 1]].is_none();
        if dots {
            f.write_str("...")?;
        } else {
            repeat(f, "[", rank - open)?;
            if open < rank {
                column = rank;
            }
            write!(f, "{:>width$}", next.next().unwrap_or_default())?;
            open = rank;
        }
        // Closes what ends here, and advances along the first dimension that does not.
        while open > 0 && at[open - 1] + 1 == shown[open - 1].len() {
            f.write_str("]")?;
            at[open - 1] = 0;
            open -= 1;
        }
        if open == 0 {
            return Ok(());
        }
        at[open - 1] += 1;
        if open < rank {
            f.write_str(",")?;
            repeat(f, "\n", rank - open)?;
            repeat(f, " ", open)?;
            continue;
        }
        column += 2 + width;
        if column > 76 {
            f.write_str(",\n")?;
            repeat(f, " ", rank)?;
            column = rank;
        } else {
            f.write_str(", ")?;
        }
    }
}

impl fmt::Display for Tensor {
    /// Prints the values like NumPy (with at most four digits), then dtype and shape.
    ///
    /// ```
    /// use refrain::{Device, Tensor};
    /// let x = Tensor::from_slice(&[1.5f32, 2.0, -3.25, 4.0], [2, 2], &Device::cpu())?;
    /// assert_eq!(x.to_string(), "[[ 1.50,  2.00],\n [-3.25,  4.00]] f32 [2, 2]");
    /// # Ok::<(), refrain::Error>(())
    /// ```
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shorten = self.numel() > WHOLE;
        let texts = match no_grad(|| texts(&self.detach(), shorten)) {
            Ok(texts) => texts,
            Err(e) => return write!(f, "<{} {}: {e}>", self.dtype(), self.shape()),
        };
        if texts.is_empty() {
            return write!(f, "[] {} {}", self.dtype(), self.shape());
        }
        let width = texts.iter().map(String::len).max().unwrap_or(0);
        write_cells(f, self.dims(), shorten, width, texts.into_iter())?;
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
