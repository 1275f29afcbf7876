//! Checks `docs/support.md`, the table of operations by dtype and device, against the code. The table has a row for
//! each operation; the operations are read from the sources.
//!
//! Each operation runs on the CPU in every dtype. With `REFRAIN_KERNELS` set, it also reports what it would launch on
//! CUDA, so that the table needs no GPU. `REFRAIN_UPDATE=1` writes the table again.
#![allow(unsafe_code)] // Sets a variable of the environment.

mod common;
#[allow(dead_code)] // Bounds and places are for the comparison of values.
mod reference_support;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use common::{folder, tensor};
use reference_support::case::{Case, Class, load};
use reference_support::{Entry, entries};
use refrain::optim::{
    AdamOptions, AdamWBuffers, AdamWOptions, LionBuffers, LionOptions, RmsPropBuffers, RmsPropOptions,
    Schedule, Segment, SegmentTable, SgdBuffers, SgdOptions, adam, adamw, clip_coefficient, learning_rate,
    lion, rmsprop, sgd,
};
use refrain::{DType, Device, Error, Generator, IndexReduction, Result, SdpaOptions, Tensor};

/// The support of one operation in one dtype.
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
            // The operation is not defined for this dtype.
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

/// The support by the first case that the dtype can run: some cases have arguments that only floats allow.
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

/// Operations whose names in the stored references differ from those in the interface.
const RENAMED: [(&str, &str); 6] = [
    ("cast", "to_dtype"),
    ("hadamard", "hadamard_transform"),
    ("pad_mode", "pad"),
    ("sdpa", "scaled_dot_product_attention"),
    ("sdpa_with", "scaled_dot_product_attention_with"),
    ("where", "where_cond"),
];

/// Operations without a stored reference here: their values are random, or nothing is computed, or they are other forms of
/// an operation with a reference, or they train (`refrain-nn` has the references of optimisers, schedules and LSTM layers).
fn others() -> Vec<(&'static str, fn(DType) -> Result<()>)> {
    fn ones(dtype: DType) -> Result<Tensor> {
        Tensor::ones([3, 4], dtype, &Device::cpu())
    }
    fn square(dtype: DType) -> Result<Tensor> {
        Tensor::eye(3, dtype, &Device::cpu())
    }
    fn generator() -> Result<Generator> {
        Generator::new(&Device::cpu(), 1)
    }
    /// Something that has one dtype only.
    fn made(x: Tensor, dtype: DType) -> Result<()> {
        let (op, device) = ("made", x.device().name());
        if x.dtype() == dtype { Ok(()) } else { Err(Error::Unsupported { op, dtype, device }) }
    }
    fn scalar(dtype: DType) -> Result<Tensor> {
        Tensor::zeros([1], dtype, &Device::cpu())
    }
    fn flat(dtype: DType) -> Result<[Tensor; 4]> {
        let zeros = || Tensor::zeros([4], dtype, &Device::cpu());
        Ok([zeros()?, zeros()?, zeros()?, zeros()?])
    }
    /// Forward and, in floats, backward.
    fn both(x: Tensor, f: impl Fn(&Tensor) -> Result<Tensor>) -> Result<()> {
        if x.dtype().is_float() {
            x.set_requires_grad(true)?;
        }
        let y = f(&x)?;
        if y.requires_grad() { y.backward_with(&y.detach().ones_like()?) } else { Ok(()) }
    }
    vec![
        ("full", |d| Tensor::full([3], 1.0, d, &Device::cpu()).map(drop)),
        ("zeros", |d| Tensor::zeros([3], d, &Device::cpu()).map(drop)),
        ("ones", |d| ones(d).map(drop)),
        ("zeros_like", |d| ones(d)?.zeros_like().map(drop)),
        ("ones_like", |d| ones(d)?.ones_like().map(drop)),
        ("copy", |d| both(ones(d)?, Tensor::copy)),
        ("copy_from", |d| ones(d)?.copy_from(&ones(d)?)),
        ("channels_last", |d| both(ones(d)?, |x| x.reshape([1, 3, 2, 2])?.channels_last())),
        ("contiguous", |d| both(ones(d)?, |x| x.transpose(0, 1)?.contiguous())),
        ("view", |d| both(ones(d)?, |x| x.view([12]))),
        ("select", |d| both(ones(d)?, |x| x.select(0, 1))),
        ("i", |d| both(ones(d)?, |x| x.i((.., 1)))),
        ("sum_to", |d| both(ones(d)?, |x| x.sum_to([3, 1]))),
        ("gelu_tanh", |d| both(ones(d)?, Tensor::gelu_tanh)),
        ("cross_entropy_smoothed", |d| {
            let ids = Tensor::zeros([3], DType::I64, &Device::cpu())?;
            both(ones(d)?, |x| x.cross_entropy_smoothed(&ids, 0.1))
        }),
        ("scaled_dot_product_attention_qkvpacked", |d| {
            let packed = Tensor::ones([1, 2, 3, 1, 4], d, &Device::cpu())?;
            both(packed, |x| x.scaled_dot_product_attention_qkvpacked(None, false))
        }),
        ("scaled_dot_product_attention_qkvpacked_with", |d| {
            let (generator, scores) = (generator()?, Tensor::ones([1, 1, 2, 2], d, &Device::cpu())?);
            let options = SdpaOptions {
                dropout: Some((0.5, &generator)),
                scores: Some(&scores),
                returns_scores: true,
                ..SdpaOptions::default()
            };
            let packed = Tensor::ones([1, 2, 3, 1, 4], d, &Device::cpu())?;
            both(packed, |x| Ok(x.scaled_dot_product_attention_qkvpacked_with(&options)?.0))
        }),
        ("lstm", |d| {
            let zeros = |shape: &[usize]| Tensor::zeros(shape, d, &Device::cpu());
            let (w, b, first) = (zeros(&[4, 1])?, zeros(&[4])?, zeros(&[3, 1])?);
            both(ones(d)?.reshape([3, 1, 4])?, |x| {
                let (states, cells) = x.lstm(&w, &b, &first, &first)?;
                states.add(&cells)
            })
        }),
        ("cholesky", |d| both(square(d)?, |x| x.cholesky())),
        ("solve_triangular", |d| both(square(d)?, |x| x.solve_triangular(x, false))),
        ("cholesky_solve", |d| both(square(d)?, |x| x.cholesky_solve(x))),
        ("solve", |d| both(square(d)?, |x| x.solve(x))),
        ("inverse", |d| both(square(d)?, |x| x.inverse())),
        ("rfft", |d| both(ones(d)?, |x| Ok(x.rfft(1)?.0))),
        ("irfft", |d| both(ones(d)?, |x| x.irfft(x, 6, 1))),
        ("fft", |d| both(ones(d)?, |x| Ok(x.fft(x, 1)?.0))),
        ("ifft", |d| both(ones(d)?, |x| Ok(x.ifft(x, 1)?.0))),
        ("windows", |d| {
            let starts = Tensor::zeros([2], DType::I64, &Device::cpu())?;
            both(ones(d)?, |x| x.windows(&starts, 2))
        }),
        ("adamw", |d| {
            let ([p, g, m, v], one) = (flat(d)?, scalar(DType::F64)?);
            let buffers = AdamWBuffers {
                parameters: &p,
                gradients: &g,
                exp_avg: &m,
                exp_avg_sq: &v,
                step: &scalar(DType::I64)?,
                learning_rate: &one,
                gradient_scale: &scalar(DType::F64)?,
                segments: &SegmentTable::new(&[Segment::new(0, 4)], &Device::cpu())?,
            };
            adamw(AdamWOptions::default(), buffers)
        }),
        ("adam", |d| {
            let ([p, g, m, v], one) = (flat(d)?, scalar(DType::F64)?);
            let buffers = AdamWBuffers {
                parameters: &p,
                gradients: &g,
                exp_avg: &m,
                exp_avg_sq: &v,
                step: &scalar(DType::I64)?,
                learning_rate: &one,
                gradient_scale: &scalar(DType::F64)?,
                segments: &SegmentTable::new(&[Segment::new(0, 4)], &Device::cpu())?,
            };
            adam(AdamOptions::default(), buffers)
        }),
        ("index_add", |d| {
            let ids = Tensor::zeros([3], DType::I64, &Device::cpu())?;
            both(ones(d)?, |x| x.index_add(0, &ids, x))
        }),
        ("glu", |d| both(Tensor::ones([3, 4], d, &Device::cpu())?, |x| x.glu(-1))),
        ("index_reduce", |d| {
            let ids = Tensor::zeros([3], DType::I64, &Device::cpu())?;
            both(ones(d)?, |x| x.index_reduce(0, &ids, x, IndexReduction::Amax, true))
        }),
        ("sequence_mask", |d| Tensor::ones([2], d, &Device::cpu())?.sequence_mask(3).map(drop)),
        ("rmsprop", |d| {
            let ([p, g, v, a], b) = (flat(d)?, Tensor::ones([4], d, &Device::cpu())?);
            let buffers = RmsPropBuffers {
                parameters: &p,
                gradients: &g,
                square_avg: &v,
                grad_avg: Some(&a),
                momentum_buffer: Some(&b),
                learning_rate: &scalar(DType::F64)?,
                gradient_scale: &scalar(DType::F64)?,
                segments: &SegmentTable::new(&[Segment::new(0, 4)], &Device::cpu())?,
            };
            rmsprop(RmsPropOptions { momentum: 0.9, centered: true, ..RmsPropOptions::default() }, buffers)
        }),
        ("lion", |d| {
            let [p, g, m, _] = flat(d)?;
            let buffers = LionBuffers {
                parameters: &p,
                gradients: &g,
                exp_avg: &m,
                learning_rate: &scalar(DType::F64)?,
                gradient_scale: &scalar(DType::F64)?,
                segments: &SegmentTable::new(&[Segment::new(0, 4)], &Device::cpu())?,
            };
            lion(LionOptions::default(), buffers)
        }),
        ("sgd", |d| {
            let [p, g, b, _] = flat(d)?;
            let buffers = SgdBuffers {
                parameters: &p,
                gradients: &g,
                momentum_buffer: Some(&b),
                learning_rate: &scalar(DType::F64)?,
                gradient_scale: &scalar(DType::F64)?,
                segments: &SegmentTable::new(&[Segment::new(0, 4)], &Device::cpu())?,
            };
            sgd(SgdOptions { momentum: 0.9, ..SgdOptions::default() }, buffers)
        }),
        ("clip_coefficient", |d| clip_coefficient(&flat(d)?[0], 1.0).map(drop)),
        ("learning_rate", |d| learning_rate(Schedule::Constant { lr: 0.1 }, &scalar(d)?).map(drop)),
        ("fill", |d| ones(d).map(drop)),
        ("checksum", |d| ones(d)?.checksum().map(drop)),
        ("arange", |d| Tensor::arange(0.0, 5.0, 1.0, d, &Device::cpu()).map(drop)),
        ("uniform", |d| generator()?.uniform([3], d).map(drop)),
        ("normal", |d| generator()?.normal([3], d).map(drop)),
        ("randint", |d| made(generator()?.randint(0, 3, [3])?, d)),
        ("permutation", |d| made(generator()?.permutation(3)?, d)),
        ("dropout_add", |d| {
            let generator = generator()?;
            both(ones(d)?, |x| x.dropout_add(0.5, &generator, x))
        }),
        ("bernoulli", |d| generator()?.bernoulli(&ones(d)?).map(drop)),
        ("multinomial", |d| generator()?.multinomial(&ones(d)?, 2, false).map(drop)),
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
    let families = [
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
    ];
    let files = families.map(|name| folder().join(format!("tests/reference/{name}.safetensors")));
    let cases: Vec<Case> = files.iter().flat_map(|f| load(f)).collect();
    for entry in entries() {
        let renamed = RENAMED.iter().find(|(stored, _)| *stored == entry.op);
        let name = renamed.map_or(entry.op, |(_, name)| name);
        rows.insert(name, DType::ALL.map(|d| support(&cases, &entry, d)).to_vec());
    }
    for (op, run) in others() {
        rows.insert(op, DType::ALL.map(|d| Support::of(run(d)).unwrap()).to_vec());
    }
    let mut text = String::from(
        "# Operations by dtype and device\n\n\
         Where an operation runs, forward and backward, in all of its forms (`_into`, `_assign`, `_keepdim`, with a\n\
         scalar); an empty cell is an error, because the operation has no meaning for the dtype. Index operands are i64\n\
         or i32. Optimisers have the dtype of the parameters, `learning_rate` that of the step counter. Made by\n\
         `REFRAIN_UPDATE=1 cargo test -p refrain --test support`.\n\n| operation |",
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

/// Public functions that are not operations: they describe a tensor or a generator, copy between host and device, or
/// create a handle.
const NO_OPERATIONS: [&str; 28] = [
    "copy_state_from",
    "detach",
    "device",
    "dims",
    "dtype",
    "for_batch_rows",
    "from_slice",
    "from_state",
    "index_select_for",
    "is_contiguous",
    "new",
    "numel",
    "rank",
    "read_into",
    "scalar",
    "set_state",
    "shape",
    "shares_storage",
    "size",
    "state",
    "storage_id",
    "strides",
    "to_device",
    "to_scalar",
    "to_vec",
    "whole",
    "write_from",
    "write_pieces",
];

/// The public functions of a file's tensors, generators and optimisers, those that macros make included.
fn public_functions(file: &Path, names: &mut BTreeSet<String>) {
    let is_name = |s: &str| {
        s.starts_with(|c: char| c.is_ascii_lowercase())
            && !s.contains(|c: char| !c.is_alphanumeric() && c != '_')
    };
    let optim = file.components().any(|c| c.as_os_str() == "optim");
    // The block that contains the line; its first and last line are not indented.
    let (mut methods, mut table) = (false, false);
    for line in std::fs::read_to_string(file).unwrap().lines() {
        if !line.starts_with([' ', '/']) && !line.is_empty() {
            methods = line.starts_with("impl Tensor {") || line.starts_with("impl Generator {");
            table = line.ends_with("! {") && !line.starts_with("macro_rules!");
        }
        let function = line.strip_prefix(if optim { "pub fn " } else { "    pub fn " });
        if let Some(function) = function.filter(|_| methods || optim) {
            names.extend(function.split(['(', '<']).next().map(str::to_string));
        }
        if let Some((columns, _)) =
            line.split_once("=>").filter(|_| table && !line.trim_start().starts_with("//"))
        {
            let columns = columns.split('(').next().unwrap_or_default();
            names.extend(columns.split(',').map(str::trim).filter(|name| is_name(name)).map(str::to_string));
        }
    }
}

fn sources(folder: &Path, names: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => sources(&path, names),
            false if path.extension().is_some_and(|e| e == "rs") => public_functions(&path, names),
            false => (),
        }
    }
}

/// The operation of which the function is a form.
fn operation(function: &str) -> &str {
    let mut name = function;
    for suffix in ["_into", "_assign", "_keepdim", "_scalar"] {
        name = name.strip_suffix(suffix).unwrap_or(name);
    }
    name.strip_prefix("scalar_").unwrap_or(name)
}

/// Each operation of the sources has a row, and there are no other rows.
fn check_rows(table: &str) {
    let source = folder().join("src");
    if !source.exists() {
        // The program runs on another machine, without the sources.
        return;
    }
    let mut functions = BTreeSet::new();
    ["ops", "tensor"].iter().for_each(|folder| sources(&source.join(folder), &mut functions));
    assert!(functions.len() > 250, "only {} public functions were found", functions.len());
    let stale: Vec<_> = NO_OPERATIONS.iter().filter(|name| !functions.contains(**name)).collect();
    assert!(stale.is_empty(), "no such functions: {stale:?}");
    let functions = functions.iter().map(String::as_str).filter(|name| !NO_OPERATIONS.contains(name));
    let operations: BTreeSet<&str> = functions.map(operation).collect();
    let cells = table.lines().filter_map(|line| line.strip_prefix("| ")?.split_once(" |"));
    let rows: BTreeSet<&str> =
        cells.map(|(name, _)| name).filter(|n| !["operation", "---"].contains(n)).collect();
    let (missing, unknown): (Vec<_>, Vec<_>) =
        (operations.difference(&rows).collect(), rows.difference(&operations).collect());
    assert!(
        missing.is_empty() && unknown.is_empty(),
        "public functions without a row in docs/support.md (add them to `others` or to the stored references, or to \
         NO_OPERATIONS): {missing:?}; rows of no public function: {unknown:?}"
    );
}

#[test]
fn the_table_of_support_is_current_and_has_every_operation() {
    let file = folder().join("../../docs/support.md");
    let kernels = std::env::temp_dir().join(format!("refrain-support-{}", std::process::id()));
    // SAFETY: the only test of this program; no other thread reads the environment yet.
    unsafe { std::env::set_var("REFRAIN_KERNELS", &kernels) };
    let table = table();
    std::fs::remove_dir_all(&kernels).unwrap();
    check_rows(&table);
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
