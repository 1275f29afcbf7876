//! `docs/support.md`, the table of operations by dtype and device, is what the code does.
//!
//! Each operation runs on the CPU in every dtype; with `REFRAIN_KERNELS` set, an operation there also says what it
//! would launch on CUDA, so that the table needs no GPU. `REFRAIN_UPDATE=1` writes the table anew.
#![allow(unsafe_code)] // Sets a variable of the environment.

mod common;
#[allow(dead_code)] // Bounds and places are for the comparison of values.
mod reference_support;

use std::collections::BTreeMap;

use common::{folder, tensor};
use reference_support::case::{Case, Class, load};
use reference_support::{Entry, entries};
use refrain::{DType, Device, Error, Generator, Result, Tensor};

/// What one operation can do in one dtype.
#[derive(Clone, Copy, PartialEq)]
enum Support {
    /// It has no meaning for the dtype.
    Meaningless,
    CpuOnly,
    Both,
}

impl Support {
    fn of(result: Result<()>) -> std::result::Result<Support, Error> {
        match result {
            Ok(()) => Ok(Support::Both),
            Err(Error::Unsupported { device, .. }) if device == "cuda" => Ok(Support::CpuOnly),
            // A dtype that the operation is not defined for.
            Err(Error::Unsupported { .. } | Error::DTypeMismatch { .. }) => Ok(Support::Meaningless),
            Err(e) => Err(e),
        }
    }

    fn cell(self) -> &'static str {
        match self {
            Support::Meaningless => " ",
            Support::CpuOnly => "cpu",
            Support::Both => "cpu cuda",
        }
    }
}

/// Forward and, in floats where there are gradients, backward.
fn run(case: &Case, entry: &Entry, dtype: DType) -> Result<()> {
    let device = Device::cpu();
    let mut views = Vec::new();
    for (i, input) in case.inputs.iter().enumerate() {
        let own = if input.class == Class::Float { dtype } else { input.dtype(dtype) };
        let leaf = tensor(&input.nd.data, &input.nd.dims[..], own, &device);
        if own.is_float() && case.gradients[i].is_some() {
            leaf.set_requires_grad(true)?;
        }
        views.push(case.layout[i].of(&leaf)?);
    }
    let outs = (entry.run)(case, &views)?;
    match outs.iter().find(|o| o.requires_grad()) {
        Some(out) => out.backward_with(&out.detach().ones_like()?),
        None => Ok(()),
    }
}

/// The first case that a dtype can run: some have arguments that only floats take.
fn support(cases: &[Case], entry: &Entry, dtype: DType) -> Support {
    let mut last = None;
    for case in cases.iter().filter(|c| c.op == entry.op && c.inputs.iter().all(|i| !i.nd.data.is_empty())) {
        match Support::of(run(case, entry, dtype)) {
            Ok(support) => return support,
            Err(e) => last = Some(e),
        }
    }
    match last {
        Some(Error::InvalidArgument { .. }) if !dtype.is_float() => Support::Meaningless,
        Some(e) => panic!("{} in {dtype}: {e}", entry.op),
        None => panic!("{} has no case with elements", entry.op),
    }
}

/// Operations that no stored reference can be of: their values are random, or there is nothing to compute.
fn others() -> Vec<(&'static str, fn(DType) -> Result<()>)> {
    fn ones(dtype: DType) -> Result<Tensor> {
        Tensor::ones([3, 4], dtype, &Device::cpu())
    }
    fn generator() -> Result<Generator> {
        Generator::new(&Device::cpu(), 1)
    }
    vec![
        ("fill", |d| ones(d).map(drop)),
        ("arange", |d| Tensor::arange(0.0, 5.0, 1.0, d, &Device::cpu()).map(drop)),
        ("uniform", |d| generator()?.uniform([3], d).map(drop)),
        ("normal", |d| generator()?.normal([3], d).map(drop)),
        ("dropout", |d| {
            let x = ones(d)?;
            if d.is_float() {
                x.set_requires_grad(true)?;
            }
            let y = x.dropout(0.5, &generator()?)?;
            if d.is_float() { y.backward_with(&ones(d)?) } else { Ok(()) }
        }),
    ]
}

fn table() -> String {
    let mut rows: BTreeMap<&str, Vec<Support>> = BTreeMap::new();
    let families = ["unary", "binary", "reduce", "shape", "norm", "matmul", "index", "attention", "loss"];
    let files = families.map(|name| folder().join(format!("tests/reference/{name}.safetensors")));
    let cases: Vec<Case> = files.iter().flat_map(|f| load(f)).collect();
    for entry in entries() {
        rows.insert(entry.op, DType::ALL.map(|d| support(&cases, &entry, d)).to_vec());
    }
    for (op, run) in others() {
        rows.insert(op, DType::ALL.map(|d| Support::of(run(d)).unwrap()).to_vec());
    }
    let mut text = String::from(
        "# Operations by dtype and device\n\n\
         Where an operation runs, forward and backward; an empty cell is `Error::Unsupported`, because the\n\
         operation has no meaning for the dtype. Index operands are i64 or i32. Made by `REFRAIN_UPDATE=1 cargo test -p \
         refrain --test support`.\n\n| operation |",
    );
    DType::ALL.iter().for_each(|d| text += &format!(" {d} |"));
    text += "\n| --- |";
    DType::ALL.iter().for_each(|_| text += " --- |");
    text += "\n";
    for (op, cells) in rows {
        text += &format!("| {op} |");
        cells.iter().for_each(|c| text += &format!(" {} |", c.cell()));
        text += "\n";
    }
    text
}

#[test]
fn the_table_of_support_is_current() {
    let file = folder().join("../../docs/support.md");
    let kernels = std::env::temp_dir().join(format!("refrain-support-{}", std::process::id()));
    // SAFETY: the only test of this program; no other thread reads the environment yet.
    unsafe { std::env::set_var("REFRAIN_KERNELS", &kernels) };
    let table = table();
    std::fs::remove_dir_all(&kernels).unwrap();
    if std::env::var("REFRAIN_UPDATE").is_ok_and(|v| v == "1") {
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        return std::fs::write(&file, table).unwrap();
    }
    let stored = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(
        stored == table,
        "docs/support.md is not what the code does; make it anew with REFRAIN_UPDATE=1 cargo test -p refrain --test support"
    );
}
