//! The pages of the book in `docs/`, and their code blocks.

use std::path::{Path, PathBuf};

/// A code block of a page.
pub struct Block {
    /// The line that begins it, from 1.
    pub line: usize,
    /// `sh`, `rust`, ... and what else stands there, such as `rust,no_run`.
    pub language: String,
    pub code: String,
    /// Why it is not run, if the line before says so.
    pub not_run: Option<String>,
}

/// The repository, or a bundle of its tests. Found when the test runs, since programs are also copied to other machines.
pub fn root() -> PathBuf {
    let crate_folder =
        std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    Path::new(&crate_folder).join("../..")
}

pub fn read(file: &str) -> String {
    let path = root().join(file);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The code blocks of a page.
pub fn blocks(text: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let (mut is_open, mut before) = (false, "");
    for (at, line) in text.lines().enumerate() {
        match line.trim_start().strip_prefix("```") {
            Some(_) if is_open => is_open = false,
            Some(language) => {
                let reason = before.strip_prefix("<!-- not run: ").and_then(|rest| rest.strip_suffix(" -->"));
                let not_run = reason.map(str::to_owned);
                blocks.push(Block {
                    line: at + 1,
                    language: language.to_owned(),
                    code: String::new(),
                    not_run,
                });
                is_open = true;
            }
            None if is_open => blocks.last_mut().unwrap().code.extend([line, "\n"]),
            None => before = line,
        }
    }
    assert!(!is_open, "a code block has no end");
    blocks
}

/// The commands of a page: its code blocks for a shell that are run.
pub fn commands(page: &str) -> String {
    let run = |block: &Block| block.language == "sh" && block.not_run.is_none();
    blocks(&read(&format!("docs/{page}"))).into_iter().filter(run).map(|block| block.code).collect()
}
