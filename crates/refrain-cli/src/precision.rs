//! The precision of a run.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// The precision of matrix products and activations.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// 32-bit floating point
    #[default]
    F32,
    /// 32-bit floating point; on a GPU the factors of matrix products are rounded to TF32
    Tf32,
    /// Mixed precision: activations are bf16, parameters and losses f32
    Bf16,
}

impl Precision {
    pub fn name(self) -> &'static str {
        match self {
            Precision::F32 => "f32",
            Precision::Tf32 => "tf32",
            Precision::Bf16 => "bf16",
        }
    }

    pub fn setting(self) -> refrain::Precision {
        match self {
            Precision::F32 => refrain::Precision::F32,
            Precision::Tf32 => refrain::Precision::Tf32,
            Precision::Bf16 => refrain::Precision::Bf16,
        }
    }
}
