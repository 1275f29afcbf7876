//! `REFRAIN_TRACE=1`: one line on standard error for each launch.

use std::fmt::Write;
use std::sync::OnceLock;

use super::launch::{Launch, Mode, Operand};

/// Whether the environment asks for a trace.
pub(super) fn enabled() -> bool {
    static ON: OnceLock<bool> = OnceLock::new();
    *ON.get_or_init(|| std::env::var("REFRAIN_TRACE").is_ok_and(|v| !v.is_empty() && v != "0"))
}

/// Prints the operation and, for each operand, dtype, shape, storage id, byte range and address.
pub(super) fn launch(launch: &Launch<'_>) {
    if !enabled() {
        return;
    }
    let mut line = format!("refrain: {}", launch.op);
    let mut operand = |what: &str, o: &Operand<'_>| {
        let range = o.byte_range();
        let _ = write!(
            line,
            "  {what} {}{} #{}[{}..{}]@{:#x}",
            o.dtype,
            o.layout.shape(),
            o.storage.id(),
            range.start,
            range.end,
            o.storage.block().address
        );
    };
    for read in launch.reads {
        operand("reads", read);
    }
    for (write, mode) in launch.writes {
        operand(if *mode == Mode::Accumulate { "adds to" } else { "writes" }, write);
    }
    eprintln!("{line}");
}
