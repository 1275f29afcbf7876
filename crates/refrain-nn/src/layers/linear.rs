//! The linear layer.

use refrain::{Activation, Tensor};

use crate::error::{Result, in_layer};
use crate::init::Init;
use crate::layer_tree::{LayerTree, Layers};
use crate::parameters::{Parameter, ParameterBuilder};

/// `y = x w^T + b`, with parameters `weight` `[out, in]` and `bias` `[out]`.
pub struct Linear {
    weight: Parameter,
    bias: Option<Parameter>,
}

impl Linear {
    /// A layer with bias and the initial values of PyTorch: weight and bias are uniform within `1 / sqrt(inputs)` of
    /// 0.
    ///
    /// # Errors
    /// If the names are used already in this scope.
    pub fn new(builder: &ParameterBuilder, inputs: usize, outputs: usize) -> Result<Linear> {
        Linear::with_init(builder, inputs, outputs, Init::torch_linear(), Some(Init::torch_bias(inputs)))
    }

    /// The same without bias (`bias=False` of PyTorch).
    ///
    /// # Errors
    /// If the names are used already in this scope.
    pub fn without_bias(builder: &ParameterBuilder, inputs: usize, outputs: usize) -> Result<Linear> {
        Linear::with_init(builder, inputs, outputs, Init::torch_linear(), None)
    }

    /// A layer with other initial values.
    ///
    /// # Errors
    /// If the names are used already in this scope.
    pub fn with_init(
        builder: &ParameterBuilder,
        inputs: usize,
        outputs: usize,
        weight: Init,
        bias: Option<Init>,
    ) -> Result<Linear> {
        Ok(Linear {
            weight: builder.parameter("weight", [outputs, inputs], weight)?,
            bias: bias.map(|init| builder.parameter("bias", outputs, init)).transpose()?,
        })
    }

    /// `[.., in]` to `[.., out]`.
    ///
    /// # Errors
    /// If the last size is not `in`, or the dtypes of `x` and the parameters do not match (see [`Tensor::linear`]).
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.forward_with(x, Activation::None, None)
    }

    /// `activation(x w^T + b) + residual` in one launch. The residual has the shape of the result.
    ///
    /// # Errors
    /// As for [`Linear::forward`], and if the residual has another shape.
    pub fn forward_with(
        &self,
        x: &Tensor,
        activation: Activation,
        residual: Option<&Tensor>,
    ) -> Result<Tensor> {
        in_layer(self, || {
            let bias = self.bias.as_ref().map(Parameter::tensor).transpose()?;
            Ok(x.linear(self.weight.tensor()?, bias, activation, residual)?)
        })
    }

    /// The weight, `[out, in]`.
    pub fn weight(&self) -> &Parameter {
        &self.weight
    }

    /// The bias, `[out]`.
    pub fn bias(&self) -> Option<&Parameter> {
        self.bias.as_ref()
    }
}

impl Layers for Linear {
    fn layers(&self) -> LayerTree {
        let [outputs, inputs] = [0, 1].map(|axis| self.weight.shape().dims()[axis]);
        let tree = LayerTree::new("Linear").setting("in_features", inputs).setting("out_features", outputs);
        let tree = tree.setting("bias", self.bias.is_some()).parameter(&self.weight);
        self.bias.iter().fold(tree, LayerTree::parameter)
    }
}
