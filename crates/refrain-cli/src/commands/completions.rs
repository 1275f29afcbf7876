//! `refrain completions`.

use crate::cli::{self, Completions};
use crate::console::Console;
use crate::error::Result;

pub fn run(args: Completions) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut cli::command(), "refrain", &mut script);
    Console::new(false).product(&script)
}
