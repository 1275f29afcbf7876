//! Rotary positions.

use refrain::{DType, Device, Tensor};

use crate::error::{Error, Result};
use crate::layer_tree::{LayerTree, Layers};

const LAYER: &str = "Rotary";
/// Angles are computed on the host.
const MOST_ANGLES: usize = 1 << 30;

/// The options of rotary positions inside an attention ([`AttentionOptions::rotary`](super::AttentionOptions::rotary)).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RotaryOptions {
    /// The most tokens of a sequence, with those of a key-value cache.
    pub positions: usize,
    /// The base of the angles, as in [`Rotary::new`].
    pub base: f64,
}

impl RotaryOptions {
    /// For so many tokens, with the usual base 10,000.
    pub fn new(positions: usize) -> RotaryOptions {
        RotaryOptions { positions, base: 10_000.0 }
    }
}

/// Rotary position embedding (Su et al., 2021): pairs of features are turned by an angle that grows with the position, so that
/// the product of a query and a key depends on their distance. Feature `i` of the first half is paired with feature `i` of the
/// second half (as in Llama and GPT-NeoX). It has no parameters.
///
/// Attention layers have it as an option, [`AttentionOptions::rotary`](super::AttentionOptions::rotary). For an attention of your
/// own:
///
/// ```
/// use refrain::{DType, Device, Generator};
/// use refrain_nn::Rotary;
///
/// let device = Device::cpu();
/// let rotary = Rotary::new(8, 100, 10_000.0, DType::F32, &device)?; // heads of 8 features, up to 100 tokens
/// let random = Generator::new(&device, 0)?;
/// let shape = [2, 4, 5, 8]; // batch, heads, tokens, features
/// let (q, k) = (random.normal(shape, DType::F32)?, random.normal(shape, DType::F32)?);
/// let scores = |start| -> refrain_nn::Result<_> {
///     Ok(rotary.forward(&q, start)?.matmul(&rotary.forward(&k, start)?.transpose(-2, -1)?)?)
/// };
/// // A score depends on how far two tokens are apart, not on where they are.
/// let difference = (scores(0)? - scores(20)?)?.abs()?.max(())?;
/// assert!(difference.to_scalar::<f32>()? < 1e-4);
/// # Ok::<(), refrain_nn::Error>(())
/// ```
pub struct Rotary {
    /// `[positions, width / 2]`
    cosines: Tensor,
    sines: Tensor,
}

impl Rotary {
    /// For heads of `width` features and up to `positions` positions, with angles `position * base^(-2 i / width)` (`base` is
    /// usually 10,000). The angles are computed in f64 and kept in `dtype`.
    ///
    /// # Errors
    /// If `width` is odd, there are no positions, `base` is not positive and finite, or the dtype is not floating-point, or with more
    /// than 2^30 angles.
    pub fn new(width: usize, positions: usize, base: f64, dtype: DType, device: &Device) -> Result<Rotary> {
        if width == 0 || !width.is_multiple_of(2) {
            let message = format!("heads of {width} features have no halves; use an even number");
            return Err(Error::invalid(LAYER, message));
        }
        if positions == 0 {
            return Err(Error::invalid(
                LAYER,
                "there are 0 positions; give the length of the longest sequence",
            ));
        }
        if !(base > 0.0 && base.is_finite()) {
            let message = format!("angles have no base {base}; use a positive number, usually 10,000");
            return Err(Error::invalid(LAYER, message));
        }
        if !dtype.is_float() {
            return Err(Error::invalid(
                LAYER,
                format!("angles have no dtype {dtype}; use a floating-point dtype"),
            ));
        }
        let half = width / 2;
        let Some(count) = positions.checked_mul(half).filter(|&count| count <= MOST_ANGLES) else {
            let message =
                format!("{positions} positions of {width} features are too many; use fewer positions");
            return Err(Error::invalid(LAYER, message));
        };
        let angle = |at: usize| (at / half) as f64 * base.powf(-2.0 * (at % half) as f64 / width as f64);
        let angles: Vec<f64> = (0..count).map(angle).collect();
        let angles = Tensor::from_slice(&angles, [positions, half], device)?;
        Ok(Rotary { cosines: angles.cos()?.to_dtype(dtype)?, sines: angles.sin()?.to_dtype(dtype)? })
    }

    /// Turns queries or keys `[.., T, width]` that begin at position `start`.
    ///
    /// # Errors
    /// If the last size is not `width`, the positions go beyond those of this layer, or the dtype is another one.
    pub fn forward(&self, x: &Tensor, start: usize) -> Result<Tensor> {
        self.turn(x, start, self.cosines.dtype())
    }

    /// [`Rotary::forward`] of queries and keys that mixed precision may have made in another dtype than that of the angles. The
    /// angles of their positions are converted.
    pub(super) fn forward_mixed(&self, x: &Tensor, start: usize) -> Result<Tensor> {
        self.turn(x, start, x.dtype())
    }

    fn turn(&self, x: &Tensor, start: usize, dtype: DType) -> Result<Tensor> {
        let (positions, half) = (self.cosines.dims()[0], self.cosines.dims()[1]);
        let steps = match x.dims() {
            [.., steps, width] if *width == 2 * half => *steps,
            _ => {
                let message =
                    format!("the input has shape {}; it must be [.., time, {}]", x.shape(), 2 * half);
                return Err(Error::invalid(LAYER, message));
            }
        };
        if start.checked_add(steps).is_none_or(|end| end > positions) {
            let message = format!(
                "{steps} time steps from position {start} go beyond the {positions} positions of this layer"
            );
            return Err(Error::invalid(LAYER, message));
        }
        let angles = |table: &Tensor| table.narrow(0, start, steps)?.to_dtype(dtype);
        let (cos, sin) = (angles(&self.cosines)?, angles(&self.sines)?);
        let (a, b) = (x.narrow(-1, 0, half)?, x.narrow(-1, half, half)?);
        let turned = [a.mul(&cos)?.sub(&b.mul(&sin)?)?, b.mul(&cos)?.add(&a.mul(&sin)?)?];
        Ok(Tensor::concat(&[&turned[0], &turned[1]], -1)?)
    }
}

impl Layers for Rotary {
    fn layers(&self) -> LayerTree {
        let (positions, half) = (self.cosines.dims()[0], self.cosines.dims()[1]);
        LayerTree::new("Rotary").setting("width", 2 * half).setting("positions", positions)
    }
}
