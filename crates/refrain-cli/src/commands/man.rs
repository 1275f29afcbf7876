//! `refrain man`.

use clap_mangen::{Man as Page, generate_to};

use crate::cli::{self, Man};
use crate::console::Console;
use crate::error::{Error, Result};

pub fn run(args: Man) -> Result<()> {
    let Some(folder) = args.out else {
        let mut page = Vec::new();
        Page::new(cli::command()).render(&mut page).map_err(Error::Stdout)?;
        return Console::new(false).product(&page);
    };
    std::fs::create_dir_all(&folder).map_err(|source| Error::write(&folder, source))?;
    generate_to(cli::command(), &folder).map_err(|source| Error::write(&folder, source))?;
    Console::of_files(false).line(format!("written to {}", folder.display()))
}
