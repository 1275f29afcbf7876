//! Layers that resize series and images.

use refrain::{Interpolation, Tensor};

use crate::error::{Error, Result};
use crate::layer_tree::{LayerTree, Layers};

/// Makes the last axes of its input larger, each by a whole factor: `[N, C, L]` with one factor, `[N, C, H, W]` with two.
///
/// ```
/// use refrain::{DType, Device, Interpolation, Tensor};
/// use refrain_nn::Upsample;
///
/// let twice = Upsample::new(&[2, 2], Interpolation::Linear { align_corners: false });
/// let y = twice.forward(&Tensor::ones([1, 3, 8, 6], DType::F32, &Device::cpu())?)?;
/// assert_eq!(y.dims(), [1, 3, 16, 12]);
/// # Ok::<(), refrain_nn::Error>(())
/// ```
#[derive(Clone)]
pub struct Upsample {
    factors: Vec<usize>,
    mode: Interpolation,
}

impl Upsample {
    /// A layer with a factor for each of the last axes.
    pub fn new(factors: &[usize], mode: Interpolation) -> Upsample {
        Upsample { factors: factors.to_vec(), mode }
    }

    /// As [`Tensor::interpolate`] says.
    ///
    /// # Errors
    /// If the input does not have two axes more than there are factors, or a factor is 0; otherwise as [`Tensor::interpolate`].
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        if x.rank() != 2 + self.factors.len() {
            let message = format!(
                "the factors are {:?} for an input of shape {}; it must have an axis of samples, one of channels, and one for each factor",
                self.factors,
                x.shape()
            );
            return Err(Error::invalid("Upsample", message));
        }
        let axes = x.dims()[2..].iter().zip(&self.factors);
        let sizes: Vec<usize> = axes.map(|(size, factor)| size.saturating_mul(*factor)).collect();
        Ok(x.interpolate(&sizes, self.mode)?)
    }
}

impl Layers for Upsample {
    fn layers(&self) -> LayerTree {
        let tree = LayerTree::new("Upsample").setting("factors", format_args!("{:?}", self.factors));
        tree.setting("mode", format_args!("{:?}", self.mode))
    }
}

macro_rules! adaptive {
    ($($(#[$doc:meta])* $name:ident, $size:ty, $method:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy)]
        pub struct $name(pub $size);

        impl Layers for $name {
            fn layers(&self) -> LayerTree {
                LayerTree::new(stringify!($name)).setting("size", format_args!("{:?}", self.0))
            }
        }

        impl $name {
            #[doc = concat!("As [`Tensor::", stringify!($method), "`] says.")]
            ///
            /// # Errors
            /// If the input has too few axes, or a size is 0.
            pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
                Ok(x.$method(self.0)?)
            }
        }
    )*};
}

adaptive! {
    /// Average pooling of series to a given number of windows: `[.., L]` to `[.., size]`.
    AdaptiveAvgPool1d, usize, adaptive_avg_pool1d;
    /// Average pooling of images to given numbers of rows and columns: `[.., H, W]` to `[.., rows, columns]`.
    AdaptiveAvgPool2d, [usize; 2], adaptive_avg_pool2d;
}
