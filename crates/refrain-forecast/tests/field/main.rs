//! Cases from practice that need the model: its loss falls, and falls equally on every device. The other cases are
//! tests of `refrain`, which describe them in detail.

#[allow(dead_code, unused_imports)] // The workload of random walks is used.
#[path = "../../../refrain-cli/src/bench/mod.rs"]
mod bench;
#[path = "../common/mod.rs"]
mod common;

mod frozen_loss;
mod loss_curves;
