//! Models: one folder each, with its settings, their help texts, defaults and checks, and its layers.

mod channel_linear;
mod checks;
pub mod cross_asset;
mod distribution;
pub mod dlinear;
mod forecaster;
mod initial;
pub mod itransformer;
mod list;
pub mod nlinear;
pub mod patchtst;
mod revin;
#[cfg(test)]
mod testing;
pub mod tsmixer;
pub(crate) mod weights;

pub use distribution::Distribution;
pub use forecaster::{
    About, ChannelUse, CovariateKinds, Forecaster, ForecasterConfig, ModelListing, WindowShape,
};
pub(crate) use initial::HEAD;
pub use initial::initialise;
pub use list::{ClassifierConfig, classifiers};
pub use refrain_nn::Mode;

list::forecasters! {
    "patchtst" PatchTst(patchtst::PatchTstConfig);
    "nlinear" NLinear(nlinear::NLinearConfig);
    "dlinear" DLinear(dlinear::DLinearConfig);
    "itransformer" ITransformer(itransformer::ITransformerConfig);
    "tsmixer" TsMixer(tsmixer::TsMixerConfig);
}
