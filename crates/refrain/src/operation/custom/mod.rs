//! Operations of the user's own.

mod composed;

pub use composed::custom_op;
