//! Every operation, forward and backward, against values that PyTorch computed in float64
//! (`tests/reference/make.py` makes them), on every device, in every float dtype, with operands lying
//! in memory in different ways, and into destinations that are parts of larger tensors.

mod common;
mod reference_support;

use std::collections::{BTreeMap, BTreeSet};

use common::{FLOATS, devices, sanitized, shortened};
use reference_support::arrange::Place;
use reference_support::case::{Case, load};
use reference_support::{Entry, entries, run};

fn family(name: &str) -> Vec<Case> {
    load(&common::folder().join(format!("tests/reference/{name}.safetensors")))
}

fn check(name: &str) {
    let entries = entries();
    let cases = family(name);
    let missing: BTreeSet<&str> =
        cases.iter().map(|c| c.op.as_str()).filter(|op| !entries.iter().any(|e| e.op == *op)).collect();
    assert!(missing.is_empty(), "{name}: operations without an entry in the table: {missing:?}");
    let mut failures = Vec::new();
    let mut checked = 0;
    let mut numbers = BTreeMap::new();
    for case in &cases {
        // Under the sanitizer every second case, in one place and one dtype, and the first with so many inputs in all dtypes.
        let number = *numbers.entry((&case.op, case.inputs.len())).and_modify(|n| *n += 1).or_insert(0);
        if sanitized() && number % 2 == 1 {
            continue;
        }
        let turn = number / 2;
        let dtypes = || shortened(FLOATS, turn, if turn == 0 { 1 } else { FLOATS.len() });
        let entry = entries.iter().find(|e| e.op == case.op).unwrap();
        for device in devices() {
            let allowed = match run::allowed(case, entry, &device) {
                Ok(allowed) => allowed,
                Err(e) => {
                    failures.push(format!("{}: {e}", case.name));
                    continue;
                }
            };
            for dtype in dtypes().filter(|&d| run::applies(case, d)) {
                for at in shortened([Place::Window, Place::Plain, Place::Reversed], turn, 3) {
                    let told = |e: String| format!("{} on {device} in {dtype}, {at:?}: {e}", case.name);
                    failures.extend(
                        run::forward_and_backward(case, entry, &device, dtype, at, &allowed).err().map(told),
                    );
                    failures.extend(run::into_a_window(case, entry, &device, dtype, at).err().map(told));
                    checked += 1;
                }
            }
        }
    }
    assert!(
        failures.is_empty(),
        "{} of {checked} checks failed:\n{}",
        failures.len(),
        failures.iter().take(60).cloned().collect::<Vec<_>>().join("\n")
    );
}

macro_rules! families {
    ($($test:ident => $file:literal;)*) => {
        $(#[test] fn $test() { check($file); })*

        #[test]
        fn every_file_has_a_test() {
            let known = [$($file),*];
            let folder = common::folder().join("tests/reference");
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.extension().is_some_and(|e| e == "safetensors") {
                    let stem = path.file_stem().unwrap().to_str().unwrap().to_string();
                    assert!(known.contains(&stem.as_str()), "no test reads {stem}.safetensors");
                }
            }
        }
    };
}

families! {
    functions_of_one_number => "unary";
    functions_of_two_numbers => "binary";
    reductions => "reduce";
    views => "shape";
    normalisations => "norm";
    products => "matmul";
    indexing => "index";
    orders => "order";
    convolutions_and_pooling => "conv";
    attention => "attention";
    losses => "loss";
    resizing_and_quantiles => "resize";
}

#[test]
fn every_entry_of_the_table_is_used() {
    let used: BTreeSet<String> = [
        "unary",
        "binary",
        "reduce",
        "shape",
        "norm",
        "matmul",
        "index",
        "order",
        "conv",
        "attention",
        "loss",
        "resize",
    ]
    .into_iter()
    .flat_map(family)
    .map(|c| c.op)
    .collect();
    for Entry { op, .. } in entries() {
        assert!(used.contains(op), "no stored case of {op}");
    }
}
