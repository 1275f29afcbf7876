//! What the comparison with stored references is made of.

pub mod arrange;
pub mod bound;
pub mod case;
mod conv;
mod elementwise;
mod index;
pub mod nd;
mod norm;
mod order;
mod products;
mod resize;
pub mod run;
mod shapes;
mod softmax;

use refrain::{Result, Tensor};

use bound::Bounds;
use case::Case;

/// How an operation of the files is called, and how exact it must be.
pub struct Entry {
    /// Its name in the files.
    pub op: &'static str,
    /// Operands to results.
    pub run: fn(&Case, &[Tensor]) -> Result<Vec<Tensor>>,
    /// Operands to results in given destinations; `None` where there is no such form.
    pub into: fn(&Case, &[Tensor], &[Tensor]) -> Option<Result<()>>,
    pub bounds: fn(&Case) -> Bounds,
}

/// All operations.
pub fn entries() -> Vec<Entry> {
    [
        elementwise::entries(),
        shapes::entries(),
        products::entries(),
        norm::entries(),
        index::entries(),
        order::entries(),
        conv::entries(),
        resize::entries(),
        softmax::entries(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn one(t: Result<Tensor>) -> Result<Vec<Tensor>> {
    Ok(vec![t?])
}

fn none(_: &Case, _: &[Tensor], _: &[Tensor]) -> Option<Result<()>> {
    None
}
