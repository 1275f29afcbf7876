//! Launches to keep, and what orders them.

mod launches;
mod order;
mod past;
mod ranges;

pub(crate) use launches::{Access, Place, RecordedLaunch};
pub(crate) use order::{Order, comes_before};
pub(crate) use past::{Past, Touching};
pub(crate) use ranges::Ranges;
