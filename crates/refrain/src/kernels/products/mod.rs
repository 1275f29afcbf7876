//! Matrix products.

pub(crate) mod cuda;
pub(crate) mod host;
