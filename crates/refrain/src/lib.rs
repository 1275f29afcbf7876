//! A tensor engine.
