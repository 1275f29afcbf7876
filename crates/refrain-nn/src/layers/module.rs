//! What layers have in common, and layers made of layers.

use refrain::{Activation, Tensor};

use super::{
    AdaptiveAvgPool1d, AdaptiveAvgPool2d, AvgPool1d, AvgPool2d, BatchNorm, Conv1d, Conv2d, ConvTranspose1d,
    ConvTranspose2d, Dropout, Embedding, Flatten, GroupNorm, Lambda, LayerNorm, Linear, MaxPool1d, MaxPool2d,
    Mode, MultiHeadAttention, RmsNorm, TransformerEncoderLayer, Upsample,
};
use crate::error::{Error, Result, in_layer};
use crate::layer_tree::{LayerTree, Layers};
use crate::parameters::ParameterBuilder;

/// A layer, or a model of layers: it makes one tensor of another.
///
/// The names and the memory of parameters belong to [`Parameters`](crate::Parameters), which the builder makes after all
/// layers have declared theirs; so a model is a plain struct of layers. [`Layers`] prints it. `Module` is for code that takes
/// any layer, such as [`Sequential`]. Whether a model trains or predicts is an argument, [`Mode`], not a state of the layer.
///
/// ```
/// use refrain::{DType, Device, Generator, Tensor};
/// use refrain_nn::{Linear, Mode, Module, ParameterBuilder, Result};
///
/// /// `x + layer(x)`
/// struct Residual<M>(M);
///
/// impl<M: Module> Module for Residual<M> {
///     fn forward(&self, x: &Tensor, mode: Mode<'_>) -> Result<Tensor> {
///         Ok((x + self.0.forward(x, mode)?)?)
///     }
/// }
///
/// let device = Device::cpu();
/// let builder = ParameterBuilder::new(&device, DType::F32);
/// let model = Residual(Linear::new(&builder, 4, 4)?);
/// builder.build(&Generator::new(&device, 0)?)?;
/// let y = model.forward(&Tensor::ones([2, 4], DType::F32, &device)?, Mode::Eval)?;
/// assert_eq!(y.dims(), [2, 4]);
/// # Ok::<(), refrain_nn::Error>(())
/// ```
pub trait Module {
    /// Computes the output.
    ///
    /// # Errors
    /// If the input has another shape, dtype or device than the layer needs.
    fn forward(&self, x: &Tensor, mode: Mode<'_>) -> Result<Tensor>;
}

/// Layers whose output does not depend on the mode.
macro_rules! without_mode {
    ($($layer:ty),*) => {$(
        impl Module for $layer {
            fn forward(&self, x: &Tensor, _: Mode<'_>) -> Result<Tensor> {
                <$layer>::forward(self, x)
            }
        }
    )*};
}
without_mode!(Linear, Embedding, LayerNorm, RmsNorm, GroupNorm, Lambda, Flatten);
without_mode!(Conv1d, Conv2d, ConvTranspose1d, ConvTranspose2d, MaxPool1d, MaxPool2d, AvgPool1d, AvgPool2d);
without_mode!(AdaptiveAvgPool1d, AdaptiveAvgPool2d, Upsample);

macro_rules! with_mode {
    ($($layer:ty),*) => {$(
        impl Module for $layer {
            fn forward(&self, x: &Tensor, mode: Mode<'_>) -> Result<Tensor> {
                <$layer>::forward(self, x, mode)
            }
        }
    )*};
}
with_mode!(BatchNorm, Dropout, MultiHeadAttention, TransformerEncoderLayer);

impl Module for Activation {
    fn forward(&self, x: &Tensor, _: Mode<'_>) -> Result<Tensor> {
        Ok(match self {
            Activation::None => x.clone(),
            Activation::Relu => x.relu()?,
            Activation::Gelu => x.gelu()?,
            Activation::GeluTanh => x.gelu_tanh()?,
            Activation::Silu => x.silu()?,
        })
    }
}

/// Layers one after the other. Give each its own scope; the numbers that PyTorch would use load PyTorch's weights.
///
/// ```
/// use refrain::{Activation, DType, Device, Generator, Tensor};
/// use refrain_nn::{Dropout, Linear, Mode, Module, ParameterBuilder, Sequential};
///
/// let device = Device::cpu();
/// let builder = ParameterBuilder::new(&device, DType::F32);
/// let model = Sequential::new()
///     .then(Linear::new(&builder.scope(0), 3, 8)?)
///     .then(Activation::Relu)
///     .then(Dropout::new(0.1)?)
///     .then(Linear::new(&builder.scope(3), 8, 1)?);
/// builder.build(&Generator::new(&device, 0)?)?;
/// let y = model.forward(&Tensor::ones([5, 3], DType::F32, &device)?, Mode::Eval)?;
/// assert_eq!(y.dims(), [5, 1]);
/// # Ok::<(), refrain_nn::Error>(())
/// ```
#[derive(Default)]
pub struct Sequential(Vec<Box<dyn Layer>>);

/// A layer that computes and shows itself.
trait Layer: Module + Layers {}

impl<T: Module + Layers> Layer for T {}

impl Sequential {
    /// Without layers, which gives the input unchanged.
    pub fn new() -> Sequential {
        Sequential::default()
    }

    /// The same with another layer at the end.
    pub fn then(mut self, layer: impl Module + Layers + 'static) -> Sequential {
        self.0.push(Box::new(layer));
        self
    }
}

impl Module for Sequential {
    fn forward(&self, x: &Tensor, mode: Mode<'_>) -> Result<Tensor> {
        self.0.iter().try_fold(x.clone(), |x, layer| in_layer(layer, || layer.forward(&x, mode)))
    }
}

impl Layers for Sequential {
    fn layers(&self) -> LayerTree {
        let numbered = self.0.iter().enumerate();
        numbered.fold(LayerTree::new("Sequential"), |tree, (i, layer)| tree.part(i, layer))
    }
}

/// A multilayer perceptron: linear layers with an activation between them, which is computed with the layer before it. For other
/// activations, use a [`Sequential`] with [`Lambda`]s. The layers are named `0`, `2`, `4` and so on, as
/// in a `Sequential` of PyTorch with activations between.
pub struct Mlp {
    layers: Vec<Linear>,
    activation: Activation,
}

impl Mlp {
    /// Layers from `sizes[0]` features to `sizes[1]`, from there to `sizes[2]`, and so on.
    ///
    /// # Errors
    /// If there are fewer than two sizes, or the names are used already in this scope.
    pub fn new(builder: &ParameterBuilder, sizes: &[usize], activation: Activation) -> Result<Mlp> {
        if sizes.len() < 2 {
            let message =
                format!("the sizes are {sizes:?}; give at least two, those of the input and of the output");
            return Err(Error::invalid("Mlp", message));
        }
        let layers = sizes.windows(2).enumerate();
        let layers = layers.map(|(i, pair)| Linear::new(&builder.scope(2 * i), pair[0], pair[1]));
        Ok(Mlp { layers: layers.collect::<Result<_>>()?, activation })
    }

    /// `[.., sizes[0]]` to `[.., last size]`.
    ///
    /// # Errors
    /// As for [`Linear::forward`].
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let last = self.layers.len() - 1;
        self.layers.iter().enumerate().try_fold(x.clone(), |x, (i, layer)| {
            let activation = if i < last { self.activation } else { Activation::None };
            layer.forward_with(&x, activation, None)
        })
    }
}

without_mode!(Mlp);

impl Layers for Mlp {
    fn layers(&self) -> LayerTree {
        self.layers.iter().enumerate().fold(LayerTree::new("Mlp"), |tree, (i, layer)| {
            let tree = if i > 0 { tree.part(2 * i - 1, &self.activation) } else { tree };
            tree.part(2 * i, layer)
        })
    }
}
