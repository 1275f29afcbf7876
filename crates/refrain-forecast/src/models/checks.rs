//! Checks that settings of models share.

use crate::{Error, Result};

pub(super) fn refuse<T>(problem: String, fix: &'static str) -> Result<T> {
    Err(Error::Model { problem, fix })
}

pub(super) fn check_sizes(sizes: &[(&str, usize)]) -> Result<()> {
    // So the product of two sizes is far from overflow; memory is the lower limit.
    match sizes.iter().find(|(_, size)| *size == 0 || *size > 1 << 24) {
        Some((name, size)) => refuse(format!("{name} is {size}"), "choose a size from 1 to 16777216"),
        None => Ok(()),
    }
}

pub(super) fn check_heads(d_model: usize, heads: usize) -> Result<()> {
    if d_model.is_multiple_of(heads) {
        return Ok(());
    }
    let problem = format!("{heads} heads do not divide d_model {d_model}");
    refuse(problem, "choose a d_model that is a multiple of heads")
}

pub(super) fn check_dropouts(rates: &[(&str, f64)]) -> Result<()> {
    match rates.iter().find(|(_, rate)| !(0.0..1.0).contains(rate)) {
        Some((name, rate)) => refuse(format!("{name} is {rate}"), "choose a probability from 0 to below 1"),
        None => Ok(()),
    }
}
