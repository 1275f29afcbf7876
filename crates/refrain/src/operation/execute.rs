//! The way of every operation to the door.

use smallvec::SmallVec;

use super::{DynOp, Needs, Spec};
use crate::device::{Device, DeviceKind, Launch, Mode, OPERANDS, Operand, RESULTS};
use crate::error::{Error, Result};
use crate::tensor::{CHANNELS_FIRST, DType, Layout, PIXELS_FIRST, Shape, Tensor, check_devices};

/// The destination of a result.
pub(crate) enum Dest {
    /// A new tensor.
    New,
    /// The memory of an existing tensor.
    Into(Tensor, Mode),
}

/// What every operation does: checks, layouts, destinations, then the door. It does not touch the tape.
///
/// `dests` may be shorter than the list of results; the other results are new tensors.
pub(crate) fn execute(
    op: &dyn DynOp,
    inputs: &[&Tensor],
    dests: &[Dest],
) -> Result<SmallVec<[Tensor; RESULTS]>> {
    let name = op.name();
    let dest_tensors = dests.iter().filter_map(|d| match d {
        Dest::Into(t, _) => Some(t),
        Dest::New => None,
    });
    let everything: SmallVec<[&Tensor; OPERANDS + RESULTS]> =
        inputs.iter().copied().chain(dest_tensors).collect();
    check_devices(name, &everything)?;
    let device = everything.first().ok_or_else(|| Error::internal(name, "no operand"))?.device().clone();
    if let Some(results) = on_pixels(op, inputs, dests, &device)? {
        return Ok(results);
    }
    let specs = op.infer(inputs)?;

    let is_host = runs_on_host(&device);
    let mut reads: SmallVec<[Tensor; OPERANDS]> = SmallVec::new();
    for (i, t) in inputs.iter().enumerate() {
        let needs = match is_host {
            // Kernels look at layouts of up to so many dimensions without heap memory.
            true if t.rank() <= 6 => op.host_input_needs(i),
            true if matches!(op.input_needs(i), Needs::Rows(_) | Needs::AllRows) => Needs::Contiguous,
            _ => op.input_needs(i),
        };
        reads.push(if needs.fits(t.layout()) { t.untracked() } else { t.untracked().copy()? });
    }

    // What the kernel writes and how, and where the result must be copied afterwards.
    let mut writes: SmallVec<[(Tensor, Mode); RESULTS]> = SmallVec::new();
    let mut staged: SmallVec<[(usize, &Tensor, Mode); RESULTS]> = SmallVec::new();
    for (o, spec) in specs.iter().enumerate() {
        let fresh = || match kept_layout(op, inputs, spec, &device) {
            Some(layout) => Tensor::empty_in(name, layout, spec.dtype, &device),
            None => Tensor::empty(name, &spec.shape, spec.dtype, &device),
        };
        match dests.get(o).unwrap_or(&Dest::New) {
            Dest::New => writes.push((fresh()?, Mode::Replace)),
            Dest::Into(dst, mode) => {
                check_dest(op, o, spec, inputs, dst)?;
                let fits =
                    op.output_needs(o).fits(dst.layout()) && writes.iter().all(|(w, _)| spans_apart(w, dst));
                let adds = *mode == Mode::Accumulate && op.accumulates(o);
                if fits && (*mode == Mode::Replace || adds) {
                    // If an operand interleaves with the destination, it is read from a copy.
                    for read in &mut reads {
                        if !spans_apart(read, dst) && read.layout() != dst.layout() {
                            *read = read.copy()?;
                        }
                    }
                    writes.push((dst.untracked(), *mode));
                } else if adds {
                    // The kernel adds to a copy. So the sum is rounded as often as with a fitting layout.
                    writes.push((dst.untracked().copy()?, Mode::Accumulate));
                    staged.push((o, dst, Mode::Replace));
                } else {
                    writes.push((fresh()?, Mode::Replace));
                    staged.push((o, dst, *mode));
                }
            }
        }
    }

    {
        let read_operands: SmallVec<[Operand<'_>; OPERANDS]> = reads.iter().map(Tensor::operand).collect();
        let write_operands: SmallVec<[(Operand<'_>, Mode); RESULTS]> =
            writes.iter().map(|(t, mode)| (t.operand(), *mode)).collect();
        let mut launch =
            Launch { op: name, kernel: op, reads: &read_operands, writes: &write_operands, workspace: None };
        let workspace = device.workspace_bytes(&launch)?;
        let room = (workspace > 0).then(|| device.workspace(name, workspace)).transpose()?;
        let bytes = Layout::contiguous(Shape::from([workspace]));
        launch.workspace = room.as_ref().map(|storage| Operand { storage, layout: &bytes, dtype: DType::U8 });
        device.launch(&launch)?;
    }
    for (o, dst, mode) in staged {
        let dst = dst.untracked();
        match mode {
            Mode::Replace => dst.copy_from(&writes[o].0)?,
            Mode::Accumulate => dst.add_assign(&writes[o].0)?,
        }
    }
    Ok(writes.into_iter().map(|(t, _)| t).collect())
}

/// Runs an elementwise operation on images `[N, C, H, W]` with their channels last as on row-major `[N, H, W, C]`, which they are in memory.
/// So new results have their channels last, too, and kernels find numbers side by side. `None` if these are other operands.
fn on_pixels(
    op: &dyn DynOp,
    inputs: &[&Tensor],
    dests: &[Dest],
    device: &Device,
) -> Result<Option<SmallVec<[Tensor; RESULTS]>>> {
    if !op.is_elementwise() || runs_on_host(device) {
        return Ok(None);
    }
    let is_last = |t: &Tensor| t.layout().is_channels_last();
    let Some(first) = inputs.iter().find(|t| is_last(t)) else {
        return Ok(None);
    };
    let is_pixels = |t: &Tensor| t.shape() == first.shape() && (is_last(t) || t.layout().repeats_memory());
    let keeps = |dest: &Dest| match dest {
        Dest::New => op.keeps_strides(),
        Dest::Into(dst, _) => is_last(dst) && dst.shape() == first.shape(),
    };
    let suits = inputs.iter().all(|t| is_pixels(t))
        && dests.iter().all(keeps)
        && (op.keeps_strides() || !dests.is_empty());
    if !suits {
        return Ok(None);
    }
    let permuted =
        |t: &Tensor, order| Tensor::from_parts(t.storage().clone(), t.layout().permute(order), t.dtype());
    let inputs: SmallVec<[Tensor; OPERANDS]> = inputs.iter().map(|t| permuted(t, &PIXELS_FIRST)).collect();
    let inputs: SmallVec<[&Tensor; OPERANDS]> = inputs.iter().collect();
    let dests: SmallVec<[Dest; RESULTS]> = dests
        .iter()
        .map(|dest| match dest {
            Dest::New => Dest::New,
            Dest::Into(dst, mode) => Dest::Into(permuted(dst, &PIXELS_FIRST), *mode),
        })
        .collect();
    let results = execute(op, &inputs, &dests)?;
    Ok(Some(results.iter().map(|result| permuted(result, &CHANNELS_FIRST)).collect()))
}

/// Whether the kernels are those of the CPU alone. Not where those of a GPU are listed, which take other layouts.
pub(crate) fn runs_on_host(device: &Device) -> bool {
    device.kind() == DeviceKind::Cpu && device.fuses().is_none()
}

/// The layout of a new result, if it is that of the inputs.
fn kept_layout(op: &dyn DynOp, inputs: &[&Tensor], spec: &Spec, device: &Device) -> Option<Layout> {
    let first = inputs.first()?.layout();
    let keeps = op.keeps_strides() && runs_on_host(device) && !first.is_contiguous();
    let is_same = || &spec.shape == first.shape() && inputs.iter().all(|t| t.layout().has_strides_of(first));
    if keeps && is_same() { first.packed() } else { None }
}

pub(crate) fn spans_apart(a: &Tensor, b: &Tensor) -> bool {
    let (x, y) = (a.operand().byte_range(), b.operand().byte_range());
    !a.shares_storage(b) || x.is_empty() || y.is_empty() || x.end <= y.start || y.end <= x.start
}

/// Checks a destination: it has the shape and dtype of the result, holds each element once, and shares no element
/// with an operand unless the operation can work in place.
fn check_dest(op: &dyn DynOp, o: usize, spec: &Spec, inputs: &[&Tensor], dst: &Tensor) -> Result<()> {
    let name = op.name();
    if dst.shape() != &spec.shape {
        return Err(Error::shapes(
            name,
            dst.shape(),
            &spec.shape,
            format!("the destination must have the shape of the result, {}", spec.shape),
        ));
    }
    if dst.dtype() != spec.dtype {
        let hint = format!("the destination must have the dtype of the result; pass one of {}", spec.dtype);
        return Err(Error::DTypeMismatch { op: name, lhs: dst.dtype(), rhs: spec.dtype, hint });
    }
    if dst.layout().repeats_memory() {
        return Err(Error::Aliased {
            op: name,
            message: format!(
                "the destination of shape {} repeats memory (a broadcast view), so elements would overwrite each other; use a tensor with its own memory",
                dst.shape()
            ),
        });
    }
    for (i, input) in inputs.iter().enumerate() {
        let same_view = input.layout() == dst.layout() && input.dtype() == dst.dtype();
        let allowed = !input.shares_storage(dst)
            || (same_view && op.in_place(o, i))
            || (input.dtype() == dst.dtype() && input.layout().is_disjoint(dst.layout()))
            || spans_apart(input, dst);
        if !allowed {
            return Err(Error::Aliased {
                op: name,
                message: format!(
                    "the destination shares memory with operand {i}, which would be overwritten while it is read; {}",
                    if op.in_place(o, i) {
                        "only the very same view may be both"
                    } else {
                        "use another destination"
                    }
                ),
            });
        }
    }
    Ok(())
}
