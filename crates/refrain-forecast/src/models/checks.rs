//! Checks that settings of models share.

use crate::data::series::CovariateCounts;
use crate::data::windows::WindowCovariates;
use crate::models::WindowShape;
use crate::{Error, Result};
use refrain::Tensor;

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

/// Checks the covariates of a batch of windows. Of a horizon that is widened for several values, future covariates have the
/// rows once.
pub(super) fn check_covariates(
    covariates: &WindowCovariates,
    counts: CovariateCounts,
    batch: usize,
    window: WindowShape,
) -> Result<()> {
    let WindowCovariates { past, future, statics } = covariates;
    let rows = |of: &Option<Tensor>| of.as_ref().and_then(|of| of.dims().get(2).copied()).unwrap_or(0);
    let ahead = rows(future).saturating_sub(window.context);
    let fits = |of: &Option<Tensor>, dims: &[usize]| match of {
        Some(of) => of.dims() == dims,
        None => dims[1] == 0,
    };
    let sound = fits(past, &[batch, counts.past, window.context])
        && fits(future, &[batch, counts.future, window.context + ahead])
        && (future.is_none() || ahead > 0 && window.horizon.is_multiple_of(ahead))
        && fits(statics, &[batch, counts.statics]);
    if sound {
        return Ok(());
    }
    let shape = |of: &Option<Tensor>| of.as_ref().map_or("none".to_owned(), |of| of.shape().to_string());
    let problem = format!(
        "the covariates of {batch} windows have the shapes {} (past), {} (future) and {} (static), but the model takes {}, {} \
         and {} with a context of {} and a horizon of {}",
        shape(past),
        shape(future),
        shape(statics),
        counts.past,
        counts.future,
        counts.statics,
        window.context,
        window.horizon,
    );
    refuse(problem, "pass [batch, past, context], [batch, future, context + horizon] and [batch, statics]")
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
