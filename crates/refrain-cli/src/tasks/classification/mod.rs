//! Classifiers of the sources of a panel.

pub mod train;
