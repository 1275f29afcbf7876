//! `refrain evaluate`.

use crate::cli::Evaluate;
use crate::console::Console;
use crate::error::Result;
use crate::tasks;

pub fn run(args: Evaluate) -> Result<()> {
    let console = Console::new(args.json);
    let trained = tasks::load(&args.model, &args.device.open()?)?;
    let data = args.data.unwrap_or_else(|| trained.source().to_owned());
    trained.evaluate(console, &data)
}
