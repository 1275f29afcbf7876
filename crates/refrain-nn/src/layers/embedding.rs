//! A table of vectors.

use refrain::Tensor;

use crate::error::{Result, in_layer};
use crate::init::Init;
use crate::layer_tree::{LayerTree, Layers};
use crate::parameters::{Parameter, ParameterBuilder};

/// A table of `count` vectors of `features` numbers, the parameter `weight` `[count, features]`, from which ids pick.
pub struct Embedding {
    weight: Parameter,
}

impl Embedding {
    /// A table with the initial values of PyTorch: normal with mean 0 and standard deviation 1.
    ///
    /// # Errors
    /// If the name is used already in this scope.
    pub fn new(builder: &ParameterBuilder, count: usize, features: usize) -> Result<Embedding> {
        Embedding::with_init(builder, count, features, Init::Normal { mean: 0.0, std: 1.0 })
    }

    /// A table with other initial values.
    ///
    /// # Errors
    /// If the name is used already in this scope.
    pub fn with_init(
        builder: &ParameterBuilder,
        count: usize,
        features: usize,
        init: Init,
    ) -> Result<Embedding> {
        Ok(Embedding { weight: builder.parameter("weight", [count, features], init)? })
    }

    /// Ids `[..]` (i64 or i32) to vectors `[.., features]`.
    ///
    /// # Errors
    /// If the ids have another dtype, or one is not below `count` (see [`Tensor::embedding`]).
    pub fn forward(&self, ids: &Tensor) -> Result<Tensor> {
        in_layer(self, || Ok(self.weight.tensor()?.embedding(ids)?))
    }

    /// The table, `[count, features]`.
    pub fn weight(&self) -> &Parameter {
        &self.weight
    }
}

impl Layers for Embedding {
    fn layers(&self) -> LayerTree {
        let [count, features] = [0, 1].map(|axis| self.weight.shape().dims()[axis]);
        let tree = LayerTree::new("Embedding").setting("count", count).setting("features", features);
        tree.parameter(&self.weight)
    }
}
