//! Dropout.

use refrain::{Generator, Tensor};

use super::Mode;
use crate::error::{Error, Result};
use crate::layer_tree::{LayerTree, Layers};

/// In training, sets each element to 0 with probability `p` and scales the others by `1 / (1 - p)`
/// ([`Tensor::dropout`]). In evaluation, does nothing.
#[derive(Clone, Copy)]
pub struct Dropout {
    p: f64,
}

impl Dropout {
    /// Dropout with probability `p`.
    ///
    /// # Errors
    /// If `p` is not in `[0, 1)`.
    pub fn new(p: f64) -> Result<Dropout> {
        if !(0.0..1.0).contains(&p) {
            return Err(Error::invalid(
                "Dropout",
                format!("p is {p}; it must be at least 0 and less than 1"),
            ));
        }
        Ok(Dropout { p })
    }

    /// Any shape.
    pub fn forward(&self, x: &Tensor, mode: Mode<'_>) -> Result<Tensor> {
        match self.draws(mode) {
            Some((p, generator)) => Ok(x.dropout(p, generator)?),
            None => Ok(x.clone()),
        }
    }

    /// The probability and the generator, if `forward` changes anything in this mode.
    pub(super) fn draws<'a>(&self, mode: Mode<'a>) -> Option<(f64, &'a Generator)> {
        match mode {
            Mode::Train(generator) if self.p > 0.0 => Some((self.p, generator)),
            _ => None,
        }
    }

    /// Whether `forward` changes anything in this mode.
    pub fn drops(&self, mode: Mode<'_>) -> bool {
        mode.is_training() && self.p > 0.0
    }
}

impl Layers for Dropout {
    fn layers(&self) -> LayerTree {
        LayerTree::new("Dropout").setting("p", self.p)
    }
}
