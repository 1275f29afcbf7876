//! Norms of rows on CUDA: of rows in memory, and of those that another kernel has in shared memory.

use std::fmt::Write;
use std::sync::Arc;

use super::lanes::{Lanes, ROWS};
use crate::device::cuda::{CudaArgs, KernelSpec, Pointer, RowNorm, Source, define, params, undefine};
use crate::tensor::DType;

/// The norm of a row in registers. It follows [`ROWS`].
pub(crate) const NORM: &str = include_str!("norm.cu");
/// Both as part of another kernel.
static BEHIND: Source = Source { name: "norm", parts: &[ROWS, NORM] };

params! {
    /// What a norm of rows is told.
    pub(crate) struct NormArgs {
        /// Nothing for rows in shared memory.
        x: Pointer,
        weight: Pointer,
        /// The weight where there is no bias.
        bias: Pointer,
        /// Nothing for results that nobody needs.
        y: Pointer,
        inv: Pointer,
        mean: Pointer,
        /// 1 / width
        share: f64,
        eps: f64,
        rows: i64,
        width: i64,
    }
}

impl NormArgs {
    /// Of a kernel without a norm.
    pub(crate) const NONE: NormArgs = NormArgs {
        x: Pointer::NOTHING,
        weight: Pointer::NOTHING,
        bias: Pointer::NOTHING,
        y: Pointer::NOTHING,
        inv: Pointer::NOTHING,
        mean: Pointer::NOTHING,
        share: 0.0,
        eps: 0.0,
        rows: 0,
        width: 0,
    };

    pub(crate) fn of(norm: &RowNorm) -> NormArgs {
        NormArgs {
            x: norm.x.pointer,
            weight: norm.weight.pointer,
            bias: norm.bias.pointer,
            y: norm.y.pointer,
            inv: norm.inv,
            mean: norm.mean,
            share: if norm.width == 0 { 0.0 } else { 1.0 / norm.width as f64 },
            eps: norm.eps,
            rows: norm.rows as i64,
            width: norm.width as i64,
        }
    }
}

/// Adds the constants of a norm, whatever its rows are divided over.
pub(crate) fn constants(spec: KernelSpec, norm: &RowNorm) -> KernelSpec {
    spec.dtype("COMPUTE", norm.dtype().accumulator())
        .dtype("IN", norm.dtype())
        .dtype("PARAMETER", norm.weight.dtype)
        .flag("CENTRED", norm.centred)
}

/// What a norm has in memory, for [`Lanes::constants`]: alignments and dtypes.
pub(crate) fn in_memory(norm: &RowNorm, args: &CudaArgs<'_>) -> impl Iterator<Item = (usize, DType)> {
    let operands = [norm.x, norm.y, norm.weight, norm.bias].map(|x| (x.pointer, x.dtype));
    let there = operands.map(|(x, dtype)| (x != Pointer::NOTHING).then(|| (args.alignment(x), dtype)));
    there.into_iter().flatten()
}

/// The text of a norm as part of another kernel, in a namespace of its own. It knows none of that kernel's constants.
/// `None` if rows do not fit into registers.
pub(crate) fn text(norm: &RowNorm, args: &CudaArgs<'_>) -> Option<Arc<str>> {
    let spec = constants(KernelSpec::new(&BEHIND, "norm"), norm);
    let spec = Lanes::of(norm.width, norm.dtype().size())?.constants(spec, in_memory(norm, args));
    let mut text = String::new();
    define(&mut text, &spec.constants);
    let _ = write!(text, "namespace row_norm {{\n{}}}\n", BEHIND.parts.concat());
    undefine(&mut text, &spec.constants);
    Some(text.into())
}
