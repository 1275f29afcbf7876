//! Forecasters of a series.

pub mod score;
pub mod train;
