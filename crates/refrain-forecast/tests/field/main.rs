//! The field's cases that need the model: that its loss falls at all, and that it falls alike on every device. The others
//! are `refrain`'s own, and say more.

#[allow(dead_code, unused_imports)] // The workload of random walks is used.
#[path = "../../../refrain-cli/src/bench/mod.rs"]
mod bench;
#[path = "../common/mod.rs"]
mod common;

mod frozen_loss;
mod loss_curves;
