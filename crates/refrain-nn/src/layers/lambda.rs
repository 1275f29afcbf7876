//! Functions without parameters as layers.

use refrain::Tensor;

use crate::error::Result;
use crate::layer_tree::{LayerTree, Layers};

/// Any function of a tensor as a layer: the activations that [`Activation`](refrain::Activation) does not have (`nn.Tanh`,
/// `nn.Sigmoid`, `nn.LeakyReLU`, `nn.ELU`, `nn.Softplus` of PyTorch), a `reshape`, or a function of your own. It has no parameters.
///
/// ```
/// use refrain::{DType, Device, Generator, Tensor};
/// use refrain_nn::{Lambda, Linear, Mode, Module, ParameterBuilder, Sequential};
///
/// let device = Device::cpu();
/// let builder = ParameterBuilder::new(&device, DType::F32);
/// let model = Sequential::new()
///     .then(Linear::new(&builder.scope(0), 4, 16)?)
///     .then(Lambda::new("LeakyRelu", |x| x.leaky_relu(0.2)))
///     .then(Linear::new(&builder.scope(2), 16, 2)?)
///     .then(Lambda::new("Tanh", Tensor::tanh));
/// let random = Generator::new(&device, 0)?;
/// builder.build(&random)?;
/// let y = model.forward(&random.normal([3, 4], DType::F32)?, Mode::Eval)?;
/// assert!(y.to_vec::<f32>()?.iter().all(|y| y.abs() < 1.0));
/// assert_eq!(
///     model.to_string(),
///     "\
/// Sequential(  # 114 parameters
///   (0): Linear(in_features=4, out_features=16, bias=true)  # 80
///   (1): LeakyRelu()
///   (2): Linear(in_features=16, out_features=2, bias=true)  # 34
///   (3): Tanh()
/// )"
/// );
/// # Ok::<(), refrain_nn::Error>(())
/// ```
pub struct Lambda {
    name: String,
    function: Box<Function>,
}

type Function = dyn Fn(&Tensor) -> refrain::Result<Tensor> + Send + Sync;

impl Lambda {
    /// A layer that prints by this name and computes this function.
    pub fn new(
        name: impl Into<String>,
        function: impl Fn(&Tensor) -> refrain::Result<Tensor> + Send + Sync + 'static,
    ) -> Lambda {
        Lambda { name: name.into(), function: Box::new(function) }
    }

    /// What the function makes of `x`.
    ///
    /// # Errors
    /// Those of the function.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        Ok((self.function)(x)?)
    }
}

impl Layers for Lambda {
    fn layers(&self) -> LayerTree {
        LayerTree::new(self.name.as_str())
    }
}

/// Joins axes ([`Tensor::flatten`]), by default all but the first: images `[N, C, H, W]` become rows `[N, C * H * W]`.
///
/// ```
/// use refrain::{DType, Device, Tensor};
/// use refrain_nn::Flatten;
///
/// let images = Tensor::zeros([2, 3, 4, 5], DType::F32, &Device::cpu())?;
/// assert_eq!(Flatten::default().forward(&images)?.dims(), [2, 60]);
/// assert_eq!(Flatten { start_dim: 2, ..Flatten::default() }.forward(&images)?.dims(), [2, 3, 20]);
/// # Ok::<(), refrain_nn::Error>(())
/// ```
#[derive(Clone, Copy)]
pub struct Flatten {
    /// The first axis that is joined.
    pub start_dim: isize,
    /// The last one. Negative axes count from the end.
    pub end_dim: isize,
}

impl Default for Flatten {
    /// From axis 1 to the last one.
    fn default() -> Flatten {
        Flatten { start_dim: 1, end_dim: -1 }
    }
}

impl Flatten {
    /// The same elements, with fewer axes.
    ///
    /// # Errors
    /// If `x` has no such axes.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        Ok(x.flatten(self.start_dim, self.end_dim)?)
    }
}

impl Layers for Flatten {
    fn layers(&self) -> LayerTree {
        LayerTree::new("Flatten").setting("start_dim", self.start_dim).setting("end_dim", self.end_dim)
    }
}
