//! Layers point one way: no file of `src/` uses a module of a layer above its own. And no kernel forgets to wait.

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The modules of the crate, each above those before it. Modules of one line may use each other.
const LAYERS: &[&[&str]] = &[
    &["activation", "error", "recycled", "sync", "types"],
    &["device"],
    &["tensor"],
    &["autograd"],
    &["kernels"],
    &["operation"],
    &["precision"],
    &["ops"],
    &["record"],
    &["display", "gradcheck"],
];

/// Layers that have tensors at hand, but no operations on them: what these add to `Tensor` is above them.
const BELOW_OPERATIONS: &[&str] = &["tensor", "autograd"];

/// Methods with names of operations on tensors, but of iterators and of nodes of the tape.
const OTHERS: &[&str] = &["all", "any", "flatten", "backward"];

/// A source file without its tests and comments.
struct Source {
    /// `device/cpu/mod.rs`
    path: String,
    text: String,
}

impl Source {
    /// The module of the crate that the file is part of.
    fn module(&self) -> &str {
        let end = self.path.find(['/', '.']).unwrap_or(self.path.len());
        &self.path[..end]
    }

    /// How many modules the file's is below the crate.
    fn depth(&self) -> usize {
        let parts = self.path.split('/').count();
        if self.path.ends_with("/mod.rs") { parts - 1 } else { parts }
    }
}

fn layer(module: &str) -> Option<usize> {
    LAYERS.iter().position(|modules| modules.contains(&module))
}

fn files(folder: &Path, extension: &str, all: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => files(&path, extension, all),
            false if path.extension().is_some_and(|e| e == extension) => all.push(path),
            false => {}
        }
    }
}

/// The text without comments, and without what is compiled for tests or documentation alone: a module is the rest of
/// its file, anything else is a line.
fn compiled(text: &str) -> String {
    let mut kept = String::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if ["#[cfg(test)]", "#[cfg(doc)]", "#[cfg(doctest)]"].contains(&line.trim()) {
            match lines.next() {
                Some(next) if next.contains("mod ") && next.ends_with('{') => break,
                _ => continue,
            }
        }
        kept += line.split("//").next().unwrap_or("");
        kept.push('\n');
    }
    kept
}

/// The names of files that are compiled for tests alone.
fn is_of_tests(path: &str) -> bool {
    let names = ["tests.rs", "simulated.rs"];
    names.iter().any(|name| path.ends_with(&format!("/{name}")))
}

fn sources() -> Vec<Source> {
    let root = common::folder().join("src");
    let mut all = Vec::new();
    files(&root, "rs", &mut all);
    all.sort();
    let sources = all.iter().map(|path| {
        let name = path.strip_prefix(&root).unwrap().to_str().unwrap().replace('\\', "/");
        Source { path: name, text: compiled(&fs::read_to_string(path).unwrap()) }
    });
    sources.filter(|s| s.path != "lib.rs" && !is_of_tests(&s.path)).collect()
}

fn name_at(text: &str) -> &str {
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
    &text[..end]
}

/// What follows the crate's root in the paths of a file: `crate::device::Device` is `device`, and so is
/// `super::device::Device` in a file of the root. In `crate::{a, b::{c, d}}` it is `a` and `b`.
fn uses(source: &Source) -> BTreeSet<&str> {
    let from_root = ["super::".repeat(source.depth()), "crate::".to_string()];
    let mut used = BTreeSet::new();
    for root in &from_root {
        for (at, _) in source.text.match_indices(root.as_str()) {
            let before = source.text[..at].chars().next_back();
            if before.is_some_and(|c| c.is_alphanumeric() || "_:".contains(c)) {
                continue;
            }
            let rest = &source.text[at + root.len()..];
            let Some(group) = rest.strip_prefix('{') else {
                used.insert(name_at(rest));
                continue;
            };
            let mut depth = 0;
            let mut begins = true;
            for (i, c) in group.char_indices() {
                match c {
                    '}' if depth == 0 => break,
                    '{' => depth += 1,
                    '}' => depth -= 1,
                    ',' if depth == 0 => begins = true,
                    c if begins && !c.is_whitespace() => {
                        used.insert(name_at(&group[i..]));
                        begins = false;
                    }
                    _ => {}
                }
            }
        }
    }
    used.remove("super");
    used
}

/// The methods that a file gives to tensors.
fn methods(source: &Source) -> impl Iterator<Item = &str> {
    let blocks = source.text.split("\nimpl Tensor {\n").skip(1);
    blocks.flat_map(|block| {
        let block = &block[..block.find("\n}\n").unwrap_or(block.len())];
        let functions = block.lines().filter(|line| line.starts_with("    ") && !line.starts_with("     "));
        functions.filter_map(|line| Some(name_at(line.split_once("fn ")?.1)))
    })
}

#[test]
fn no_module_uses_one_of_a_layer_above_it() {
    let sources = sources();
    let mut wrong = Vec::new();
    for source in &sources {
        let path = &source.path;
        let Some(own) = layer(source.module()) else {
            wrong.push(format!(
                "src/{path}: its module {} has no layer; give it one in LAYERS",
                source.module()
            ));
            continue;
        };
        for used in uses(source) {
            match layer(used) {
                Some(layer) if layer <= own => {}
                Some(_) => wrong.push(format!("src/{path}: {} is below {used}", source.module())),
                None => wrong.push(format!("src/{path}: crate::{used} hides its module; use it from there")),
            }
        }
    }
    assert!(sources.len() > 100, "{} files", sources.len());
    assert!(
        wrong.is_empty(),
        "{}\nA module knows those of layers below it alone. Where it must call what is above, let it define a trait \
         that the one above implements, or move the code up.",
        wrong.join("\n")
    );
}

#[test]
fn no_layer_below_operations_runs_one_by_a_method() {
    let sources = sources();
    let below = |s: &&Source| BELOW_OPERATIONS.contains(&s.module());
    let above: BTreeSet<&str> =
        sources.iter().filter(|s| layer(s.module()) >= layer("operation")).flat_map(methods).collect();
    assert!(above.contains("matmul") && above.contains("to_vec") && !above.contains("shape"), "{above:?}");
    let mut wrong = Vec::new();
    for source in sources.iter().filter(below) {
        for prefix in [".", "Tensor::"] {
            for (at, _) in source.text.match_indices(prefix) {
                let name = name_at(&source.text[at + prefix.len()..]);
                let is_call = source.text[at + prefix.len() + name.len()..].starts_with('(');
                if is_call && above.contains(name) && !OTHERS.contains(&name) {
                    wrong.push(format!("src/{}: {prefix}{name}() is an operation", source.path));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}\nMove the code to `operation/` or `ops/`.", wrong.join("\n"));
}

#[test]
fn kernels_that_wait_by_themselves_take_their_turn_once() {
    let mut all = Vec::new();
    files(&common::folder().join("src"), "cu", &mut all);
    let mut found = 0;
    for path in all.iter().filter(|path| !path.ends_with("prelude.cu")) {
        let text = fs::read_to_string(path).unwrap();
        for kernel in text.split("\nKERNEL_THAT_WAITS(").skip(1) {
            let body = &kernel[..kernel.find("\n}").unwrap()];
            let (before, after) = body.split_once("take_turn(").unwrap_or((body, "take_turn("));
            let alone = !before.contains("return;") && !after.contains("take_turn(");
            assert!(alone, "{}: call take_turn once, before any return: {}", path.display(), name_at(kernel));
            found += 1;
        }
    }
    assert!(found >= 10, "{found}");
}
