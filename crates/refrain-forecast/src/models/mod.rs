//! Models: one folder each, with its settings, their defaults and checks, and its layers.

pub mod cross_asset;
pub mod patchtst;
pub(crate) mod weights;
