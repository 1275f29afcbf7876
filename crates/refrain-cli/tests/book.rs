//! The book in `docs/`: its table of contents, its links, and that each code block is run or says why not.

mod common;

use std::collections::BTreeSet;
use std::path::Path;

use common::book::{blocks, read, root};

/// What runs the examples in Rust.
const DOCTESTS: &str = include_str!("../../refrain-forecast/src/book.rs");
/// What runs the commands.
const TESTS: [&str; 2] = [include_str!("tutorial.rs"), include_str!("hugging_face.rs")];

/// The names of the pages, as they are in the folder.
fn pages() -> BTreeSet<String> {
    let files = std::fs::read_dir(root().join("docs")).unwrap();
    let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.ends_with(".md") && name != "SUMMARY.md").collect()
}

/// The targets of the links of a page, without those in its code.
fn links(text: &str) -> Vec<String> {
    let mut is_code = false;
    let prose = text.lines().filter(|line| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence
    });
    let prose = prose.collect::<Vec<_>>().join("\n");
    let targets = prose.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    targets.map(str::to_owned).collect()
}

/// The name of a heading in an address.
fn anchor(heading: &str) -> String {
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = text.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

#[test]
fn the_table_of_contents_has_each_page_once() {
    let entries = links(&read("docs/SUMMARY.md"));
    let once: BTreeSet<String> = entries.iter().cloned().collect();
    assert_eq!(once.len(), entries.len(), "{entries:?}");
    assert_eq!(once, pages());
}

#[test]
fn each_code_block_is_run_or_says_why_not() {
    let mut faults = Vec::new();
    for page in pages() {
        for block in blocks(&read(&format!("docs/{page}"))) {
            let is_run = match block.language.as_str() {
                "rust" => DOCTESTS.contains(&format!("docs/{page}\"")),
                "sh" => TESTS.iter().any(|test| test.contains(&format!("\"{page}\""))),
                // What a file or an output looks like, and formulas.
                "csv" | "text" => true,
                _ => false,
            };
            let is_told = match (is_run, &block.not_run) {
                (true, None) => true,
                // Other commands of the page are run.
                (true, Some(_)) => block.language == "sh",
                (false, reason) => reason.is_some(),
            };
            if !is_told {
                faults.push(format!("{page}:{}: {}", block.line, block.language));
            }
        }
    }
    assert!(
        faults.is_empty(),
        "neither run nor is there a line `<!-- not run: the reason -->` before, or both: {faults:#?}"
    );
}

#[test]
fn links_lead_to_files_and_headings_that_exist() {
    if !root().join("Cargo.toml").exists() {
        return; // A bundle of tests has the pages alone.
    }
    let mut files: Vec<String> = pages().into_iter().map(|page| format!("docs/{page}")).collect();
    let others = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "bench/README.md", "examples/README.md"];
    files.extend(others.map(str::to_owned));
    let mut broken = Vec::new();
    for file in &files {
        for link in links(&read(file)).iter().filter(|link| !link.contains("://")) {
            let (path, heading) = link.split_once('#').unwrap_or((link, ""));
            let target = match path {
                "" => file.clone(),
                _ => Path::new(file).parent().unwrap().join(path).to_str().unwrap().to_owned(),
            };
            let has_heading = || {
                let mut is_code = false;
                let mut headings = Vec::new();
                let text = read(&target);
                for line in text.lines() {
                    is_code ^= line.trim_start().starts_with("```");
                    if !is_code && line.starts_with('#') {
                        headings.push(anchor(line));
                    }
                }
                headings.iter().any(|of| of == heading)
            };
            if !root().join(&target).exists() || !heading.is_empty() && !has_heading() {
                broken.push(format!("{file}: {link}"));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}
