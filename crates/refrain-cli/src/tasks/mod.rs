//! The two tasks, a room each, and what their runs share.

pub mod classification;
mod epochs;
pub mod forecasting;

use serde::Serialize;

use crate::error::{Error, Result};

fn as_json(value: &impl Serialize) -> Result<serde_json::Value> {
    serde_json::to_value(value).map_err(Error::Json)
}
