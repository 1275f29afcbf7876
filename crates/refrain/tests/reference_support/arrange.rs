//! The same values in different places of memory.

use refrain::{DType, Device, Tensor};

use super::case::{Array, Class};
use super::nd::{Nd, strides};
use crate::common::{tensor, values};

/// Where the elements of an operand lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Row-major, alone in its storage.
    Plain,
    /// Column-major.
    Reversed,
    /// Inside a larger tensor, all around it values that would show in any result.
    Window,
}

/// What stands around a window: NaN, or an index that no axis has.
fn outside(class: Class) -> f64 {
    match class {
        Class::Float => f64::NAN,
        Class::I64 => (1u64 << 40) as f64,
        Class::I32 => 1e9,
        Class::Bool => 1.0,
    }
}

pub fn place(array: &Array, float: DType, device: &Device, place: Place) -> Tensor {
    let dtype = array.dtype(float);
    match place {
        Place::Plain => array.tensor(float, device),
        Place::Reversed => {
            let (dims, data) = reversed(&array.nd);
            let order: Vec<isize> = (0..dims.len() as isize).rev().collect();
            tensor(&data, dims, dtype, device).permute(&order).unwrap()
        }
        Place::Window => {
            let w = Window::new(&array.nd.dims, dtype, outside(array.class), device);
            match dtype {
                DType::Bool => {
                    w.view.write_from(&array.nd.data.iter().map(|&v| v != 0.0).collect::<Vec<_>>())
                }
                _ => w.view.copy_from(&array.tensor(float, device)),
            }
            .unwrap();
            w.view
        }
    }
}

fn reversed(nd: &Nd) -> (Vec<usize>, Vec<f64>) {
    let dims: Vec<usize> = nd.dims.iter().rev().copied().collect();
    let mut at = vec![0];
    for (&d, &s) in nd.dims.iter().zip(&strides(&nd.dims)).rev() {
        at = at.iter().flat_map(|&o| (0..d).map(move |i| o + i * s)).collect();
    }
    (dims, at.iter().map(|&i| nd.data[i]).collect())
}

/// A part of a larger tensor, with what stands around it.
pub struct Window {
    pub view: Tensor,
    whole: Tensor,
    margin: f64,
    inside: Vec<bool>,
}

impl Window {
    /// A window of zeros, `margin` around it.
    pub fn new(dims: &[usize], dtype: DType, margin: f64, device: &Device) -> Window {
        let sizes = if dims.is_empty() { &[1][..] } else { dims };
        let mut inside = vec![true];
        for &d in sizes {
            inside = inside.iter().flat_map(|&i| (0..d + 2).map(move |j| i && j >= 1 && j <= d)).collect();
        }
        let padded: Vec<usize> = sizes.iter().map(|d| d + 2).collect();
        let whole: Vec<f64> = inside.iter().map(|&i| if i { 0.0 } else { margin }).collect();
        let whole = tensor(&whole, padded, dtype, device);
        let mut view = whole.clone();
        for (axis, &d) in sizes.iter().enumerate() {
            view = view.narrow(axis as isize, 1, d).unwrap();
        }
        if dims.is_empty() {
            view = view.squeeze(0).unwrap();
        }
        // What the margin became in this dtype.
        let margin = inside.iter().position(|i| !i).map_or(margin, |i| values(&whole)[i]);
        Window { view, whole, margin, inside }
    }

    /// Whether nothing but the window was written.
    pub fn margin_is_intact(&self) -> bool {
        let now = values(&self.whole);
        now.iter().zip(&self.inside).all(|(v, &inside)| inside || v.to_bits() == self.margin.to_bits())
    }
}
