//! Convolutions and pooling as layers.

use refrain::{
    Conv1dOptions, Conv2dOptions, ConvTranspose1dOptions, ConvTranspose2dOptions, PadMode, Pool1dOptions,
    Pool2dOptions, Tensor,
};

use crate::error::{Error, Result, in_layer};
use crate::init::Init;
use crate::layer_tree::{LayerTree, Layers};
use crate::parameters::{Parameter, ParameterBuilder};

/// The channels of one group. The operation checks the others.
fn in_groups(layer: &'static str, channels: usize, groups: usize) -> Result<usize> {
    if groups == 0 || !channels.is_multiple_of(groups) {
        let message =
            format!("{groups} groups for {channels} channels; their number must divide that of the channels");
        return Err(Error::invalid(layer, message));
    }
    Ok(channels / groups)
}

macro_rules! convolutions {
    ($($(#[$doc:meta])* $name:ident, $options:ident, $method:ident, $kernel:ty, $turned:literal, $shape:literal;)*) => {$(
        $(#[$doc])*
        pub struct $name {
            weight: Parameter,
            bias: Option<Parameter>,
            options: $options,
            /// What the padding consists of, if not of zeros. Transposed convolutions have zeros.
            padding_mode: Option<PadMode>,
        }

        impl $name {
            /// A layer from `inputs` to `outputs` channels with windows of this size, and the initial values of PyTorch:
            /// weight and bias are uniform within `1 / sqrt(fan_in)` of 0.
            ///
            /// # Errors
            /// If the groups do not divide the channels, or the names are used already in this scope.
            pub fn new(
                builder: &ParameterBuilder,
                inputs: usize,
                outputs: usize,
                kernel: $kernel,
                options: $options,
            ) -> Result<$name> {
                let fan_in = $name::shape(inputs, outputs, kernel, &options)?[1..].iter().product();
                let bias = Some(Init::torch_bias(fan_in));
                $name::with_init(builder, inputs, outputs, kernel, options, Init::torch_linear(), bias)
            }

            /// The same without bias (`bias=False` of PyTorch), as before a batch norm.
            ///
            /// # Errors
            /// If the groups do not divide the channels, or the names are used already in this scope.
            pub fn without_bias(
                builder: &ParameterBuilder,
                inputs: usize,
                outputs: usize,
                kernel: $kernel,
                options: $options,
            ) -> Result<$name> {
                $name::with_init(builder, inputs, outputs, kernel, options, Init::torch_linear(), None)
            }

            /// A layer with other initial values.
            ///
            /// # Errors
            /// If the groups do not divide the channels, or the names are used already in this scope.
            pub fn with_init(
                builder: &ParameterBuilder,
                inputs: usize,
                outputs: usize,
                kernel: $kernel,
                options: $options,
                weight: Init,
                bias: Option<Init>,
            ) -> Result<$name> {
                Ok($name {
                    weight: builder.parameter("weight", $name::shape(inputs, outputs, kernel, &options)?, weight)?,
                    bias: bias.map(|init| builder.parameter("bias", outputs, init)).transpose()?,
                    options,
                    padding_mode: None,
                })
            }

            /// The shape of the weight.
            fn shape(inputs: usize, outputs: usize, kernel: $kernel, options: &$options) -> Result<Vec<usize>> {
                let grouped = |channels| in_groups(stringify!($name), channels, options.groups);
                let mut shape = match $turned {
                    true => vec![inputs, grouped(outputs)?],
                    false => vec![outputs, grouped(inputs)?],
                };
                shape.extend(Sizes::from(kernel).0);
                Ok(shape)
            }

            #[doc = concat!("`", $shape, "`, as [`Tensor::", stringify!($method), "`] says.")]
            ///
            /// # Errors
            /// If the channels, the dtype or the device are not those of the parameters, a window does not fit, or the input has too few
            /// elements for its padding mode ([`Tensor::pad`]).
            pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
                in_layer(self, || {
                    let bias = self.bias.as_ref().map(Parameter::tensor).transpose()?;
                    let weight = self.weight.tensor()?;
                    let sizes = Sizes::from(self.options.padding).0;
                    match self.padding_mode {
                        // The convolution names a wrong shape as it was passed.
                        Some(mode)
                            if x.rank() == 2 + sizes.len()
                                && x.dims()[1] == weight.dims()[1] * self.options.groups
                                && sizes.iter().any(|&size| size > 0) =>
                        {
                            let sizes = sizes.into_iter().map(|size| (size, size));
                            let padding: Vec<(usize, usize)> = [(0, 0), (0, 0)].into_iter().chain(sizes).collect();
                            let options = $options { padding: Default::default(), ..self.options };
                            Ok(x.pad(&padding, mode)?.$method(weight, bias, &options)?)
                        }
                        _ => Ok(x.$method(weight, bias, &self.options)?),
                    }
                })
            }

            /// The weight.
            pub fn weight(&self) -> &Parameter {
                &self.weight
            }

            /// The bias, `[outputs]`, if there is one.
            pub fn bias(&self) -> Option<&Parameter> {
                self.bias.as_ref()
            }
        }

        impl Layers for $name {
            fn layers(&self) -> LayerTree {
                let $options { stride, padding, dilation, groups, .. } = self.options;
                let [first, second, window @ ..] = self.weight.shape().dims() else {
                    return LayerTree::nothing();
                };
                let (inputs, outputs) = if $turned { (*first, second * groups) } else { (second * groups, *first) };
                let tree = LayerTree::new(stringify!($name)).setting("inputs", inputs).setting("outputs", outputs);
                let tree = tree.setting("kernel", format_args!("{window:?}"));
                let tree = tree.setting("stride", format_args!("{stride:?}"));
                let tree = tree.setting("padding", format_args!("{padding:?}"));
                let tree = match self.padding_mode {
                    Some(mode) => tree.setting("padding_mode", format_args!("{mode:?}")),
                    None => tree,
                };
                let tree = tree.setting("dilation", format_args!("{dilation:?}")).setting("groups", groups);
                let tree = tree.setting("bias", self.bias.is_some()).parameter(&self.weight);
                self.bias.iter().fold(tree, LayerTree::parameter)
            }
        }
    )*};
}

/// The size of a window along each axis.
struct Sizes(Vec<usize>);

impl From<usize> for Sizes {
    fn from(size: usize) -> Sizes {
        Sizes(vec![size])
    }
}

impl From<[usize; 2]> for Sizes {
    fn from(sizes: [usize; 2]) -> Sizes {
        Sizes(sizes.to_vec())
    }
}

convolutions! {
    /// A convolution of series, with parameters `weight` `[outputs, inputs / groups, length]` and `bias` `[outputs]`.
    Conv1d, Conv1dOptions, conv1d, usize, false, "[N, inputs, L] to [N, outputs, L']";
    /// A convolution of images, with parameters `weight` `[outputs, inputs / groups, height, width]` and `bias` `[outputs]`.
    ///
    /// ```
    /// use refrain::{Conv2dOptions, DType, Device, Generator, Tensor};
    /// use refrain_nn::{Conv2d, ParameterBuilder};
    ///
    /// let device = Device::cpu();
    /// let builder = ParameterBuilder::new(&device, DType::F32);
    /// let options = Conv2dOptions { padding: [1, 1], ..Conv2dOptions::default() };
    /// let conv = Conv2d::new(&builder, 3, 8, [3, 3], options)?;
    /// builder.build(&Generator::new(&device, 0)?)?;
    /// let y = conv.forward(&Tensor::ones([2, 3, 16, 16], DType::F32, &device)?)?;
    /// assert_eq!(y.dims(), [2, 8, 16, 16]);
    /// # Ok::<(), refrain_nn::Error>(())
    /// ```
    Conv2d, Conv2dOptions, conv2d, [usize; 2], false, "[N, inputs, H, W] to [N, outputs, H', W']";
    /// A transposed convolution of series, with parameters `weight` `[inputs, outputs / groups, length]` and `bias`.
    ConvTranspose1d, ConvTranspose1dOptions, conv_transpose1d, usize, true, "[N, inputs, L] to [N, outputs, L']";
    /// A transposed convolution of images, with parameters `weight` `[inputs, outputs / groups, height, width]` and `bias`.
    ConvTranspose2d, ConvTranspose2dOptions, conv_transpose2d, [usize; 2], true, "[N, inputs, H, W] to [N, outputs, H', W']";
}

macro_rules! padding_modes {
    ($($name:ident)*) => {$(
        impl $name {
            /// The layer, whose padding consists of elements of the input, or of a value, instead of zeros (`padding_mode` of PyTorch). The
            /// options say how large it is. The input is padded first, so that images with their channels last are copied to row-major.
            ///
            /// ```
            /// use refrain::{Conv1dOptions, DType, Device, Generator, PadMode, Tensor};
            /// use refrain_nn::{Conv1d, Init, ParameterBuilder};
            ///
            /// let device = Device::cpu();
            /// let builder = ParameterBuilder::new(&device, DType::F32);
            /// let options = Conv1dOptions { padding: 1, ..Conv1dOptions::default() };
            /// let sums = Conv1d::with_init(&builder, 1, 1, 3, options, Init::Constant(1.0), None)?;
            /// let sums = sums.padding_mode(PadMode::Circular);
            /// builder.build(&Generator::new(&device, 0)?)?;
            /// let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], [1, 1, 4], &device)?;
            /// assert_eq!(sums.forward(&x)?.to_vec::<f32>()?, [7.0, 6.0, 9.0, 8.0]);
            /// # Ok::<(), refrain_nn::Error>(())
            /// ```
            pub fn padding_mode(mut self, mode: impl Into<PadMode>) -> $name {
                self.padding_mode = Some(mode.into());
                self
            }
        }
    )*};
}
padding_modes!(Conv1d Conv2d);

macro_rules! pools {
    ($($(#[$doc:meta])* $name:ident, $options:ident, $method:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy)]
        pub struct $name(pub $options);

        impl Layers for $name {
            fn layers(&self) -> LayerTree {
                let $options { kernel, stride, padding, .. } = self.0;
                let tree = LayerTree::new(stringify!($name)).setting("kernel", format_args!("{kernel:?}"));
                let tree = tree.setting("stride", format_args!("{stride:?}"));
                tree.setting("padding", format_args!("{padding:?}"))
            }
        }

        impl $name {
            #[doc = concat!("As [`Tensor::", stringify!($method), "`] says.")]
            ///
            /// # Errors
            /// If the shape or the dtype is another one, or a window does not fit.
            pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
                Ok(x.$method(&self.0)?)
            }
        }
    )*};
}

pools! {
    /// The largest element of each window of series.
    MaxPool1d, Pool1dOptions, max_pool1d;
    /// The largest element of each window of images.
    MaxPool2d, Pool2dOptions, max_pool2d;
    /// The mean of each window of series.
    AvgPool1d, Pool1dOptions, avg_pool1d;
    /// The mean of each window of images.
    AvgPool2d, Pool2dOptions, avg_pool2d;
}
