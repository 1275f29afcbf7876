//! The field's cases: faults that were seen in tensor engines at work, one file each. A file begins with what was
//! seen and what of it a test there finds; every test runs on the CPU, both simulated GPUs, and the GPU that there is.
//! Tests take turns, since many read a device's counters.
//!
//! That PatchTST's loss falls, and how it falls on each device, stands with the model in `refrain-forecast`.

#[path = "../common/mod.rs"]
mod common;

mod capture;
mod capture_status;
mod host_reads;
mod in_place_aliasing;
mod orphaned_destinations;
mod persistent_accumulator;
mod replayed_state;
mod saved_under_pressure;
#[path = "../common/stream.rs"]
mod stream;
mod views_of_halves;
mod zero_destinations;
