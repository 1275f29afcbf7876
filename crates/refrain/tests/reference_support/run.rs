//! One case on one device, in one dtype, with one memory layout of its operands.

use refrain::{DType, Device, Tensor, no_grad};

use super::Entry;
use super::arrange::{Place, Window, place};
use super::bound::{Bound, Bounds, compare, ulp};
use super::case::{Case, Class};
use super::nd::Nd;
use crate::common::{tensor, values};

type Check = Result<(), String>;

fn text(e: refrain::Error) -> String {
    e.to_string()
}

/// Whether a dtype can represent the numbers of the case.
pub fn applies(case: &Case, dtype: DType) -> bool {
    !(case.tag.as_deref() == Some("wide") && dtype == DType::F16)
}

/// The operands: leaves, and the views of them that the operation receives.
struct Operands {
    leaves: Vec<Tensor>,
    views: Vec<Tensor>,
    /// The gradient buffers, if the test set them.
    gradients: Vec<Option<Window>>,
}

fn operands(case: &Case, dtype: DType, device: &Device, at: Place, grad: bool) -> Result<Operands, String> {
    let mut o = Operands { leaves: vec![], views: vec![], gradients: vec![] };
    for (i, input) in case.inputs.iter().enumerate() {
        let leaf = place(input, dtype, device, at);
        let mut window = None;
        if grad && case.gradients[i].is_some() {
            leaf.set_requires_grad(true).map_err(text)?;
            if at == Place::Window {
                let w = Window::new(&input.nd.dims, dtype, 7.0, device);
                leaf.set_grad(&w.view).map_err(text)?;
                window = Some(w);
            }
        }
        o.views.push(case.layout[i].of(&leaf).map_err(text)?);
        o.leaves.push(leaf);
        o.gradients.push(window);
    }
    Ok(o)
}

/// Backward from all differentiable outputs with the cotangents.
fn backward(case: &Case, outs: &[Tensor], cotangents: &[Option<Nd>]) -> Check {
    let wanted: Vec<(&Tensor, Tensor)> = outs
        .iter()
        .zip(cotangents)
        .filter_map(|(o, c)| Some((o, tensor(&c.as_ref()?.data, o.shape(), o.dtype(), o.device()))))
        .collect();
    if case.gradients.iter().all(Option::is_none) {
        return Ok(());
    }
    if let [(out, cotangent)] = &wanted[..] {
        return out.backward_with(cotangent).map_err(text);
    }
    // Several outputs: compute the gradient of sum(out * cotangent), which is the cotangents.
    let mut total: Option<Tensor> = None;
    for (out, cotangent) in &wanted {
        let term = out.mul(cotangent).and_then(|p| p.sum(())).map_err(text)?;
        total = Some(match total {
            None => term,
            Some(t) => t.add(&term).map_err(text)?,
        });
    }
    total.map_or(Ok(()), |t| t.backward().map_err(text))
}

fn gradient(leaf: &Tensor) -> Vec<f64> {
    // A gradient that is 0 everywhere need not be stored.
    leaf.grad().map_or_else(|| vec![0.0; leaf.numel()], |g| values(&g))
}

/// The tolerance of each element.
pub struct Allowed {
    outs: Vec<Bound>,
    /// With respect to the bases: the terms, and the number of roundings in them.
    grads: Vec<Option<(Nd, Nd)>>,
}

fn absolute(case: &Case, ones: bool) -> Case {
    let f = |v: f64| if ones { 1.0 } else { v.abs() };
    let mut inputs = case.inputs.clone();
    for a in inputs.iter_mut().filter(|a| a.class == Class::Float) {
        a.nd = a.nd.map(f);
    }
    Case {
        name: case.name.clone(),
        op: case.op.clone(),
        attrs: case.attrs.clone(),
        inputs,
        layout: case.layout.clone(),
        outputs: case.outputs.clone(),
        cotangents: case.cotangents.iter().map(|c| c.as_ref().map(|c| c.map(f))).collect(),
        gradients: case.gradients.clone(),
        tag: case.tag.clone(),
    }
}

/// Computes the tolerances of a case, once for all dtypes.
pub fn allowed(case: &Case, entry: &Entry, device: &Device) -> Result<Allowed, String> {
    match (entry.bounds)(case) {
        Bounds::Formula { outs, grads } => {
            assert_eq!(outs.len(), case.outputs.len(), "{}: bounds of outputs", case.name);
            assert_eq!(grads.len(), case.inputs.len(), "{}: bounds of gradients", case.name);
            let grads = case.gradients.iter().zip(grads).enumerate();
            let grads = grads.map(|(i, (wanted, bound))| {
                let (base, view) = (&case.inputs[i].nd, &case.layout[i]);
                wanted.as_ref()?;
                let (dims, at) = view.indices(&base.dims);
                let (terms, k) = match bound {
                    Bound::Terms(terms, k) => (terms, k),
                    other => panic!("{}: a gradient bounded by {other:?}", case.name),
                };
                let counts = Nd::full(&terms.dims, k).sum_to(&dims);
                let terms = terms.sum_to(&dims);
                let (mut t, mut n) = (Nd::full(&base.dims, 0.0), Nd::full(&base.dims, 0.0));
                for (j, &to) in at.iter().enumerate() {
                    t.data[to] += terms.data[j];
                    n.data[to] += counts.data[j];
                }
                Some((t, n))
            });
            let grads = grads.collect();
            Ok(Allowed { outs, grads })
        }
        Bounds::Linear { exact_outs } => {
            let run = |case: &Case| -> Result<(Vec<Nd>, Vec<Nd>), String> {
                let o = operands(case, DType::F64, device, Place::Plain, true)?;
                let outs = (entry.run)(case, &o.views).map_err(text)?;
                backward(case, &outs, &case.cotangents)?;
                let nd = |t: &Tensor| Nd { dims: t.dims().to_vec(), data: values(t) };
                let grads = o.leaves.iter().map(|l| Nd { dims: l.dims().to_vec(), data: gradient(l) });
                Ok((outs.iter().map(nd).collect(), grads.collect()))
            };
            let (out_terms, grad_terms) = run(&absolute(case, false))?;
            let (out_counts, grad_counts) = run(&absolute(case, true))?;
            let outs = out_terms.into_iter().zip(out_counts).map(|(t, n)| match exact_outs {
                true => Bound::Exact,
                false => Bound::Terms(t, n.data.iter().copied().fold(1.0, f64::max)),
            });
            let outs = outs.collect();
            let grads = grad_terms.into_iter().zip(grad_counts).zip(&case.gradients);
            let grads = grads.map(|((t, n), wanted)| wanted.is_some().then_some((t, n.map(|n| n.max(1.0)))));
            Ok(Allowed { outs, grads: grads.collect() })
        }
    }
}

fn check_outs(case: &Case, outs: &[Tensor], dtype: DType, allowed: &Allowed) -> Check {
    if outs.len() != case.outputs.len() {
        return Err(format!("{} results, expected {}", outs.len(), case.outputs.len()));
    }
    for (o, (out, expected)) in outs.iter().zip(&case.outputs).enumerate() {
        if out.dims() != expected.nd.dims {
            return Err(format!("result {o} has shape {}, expected {:?}", out.shape(), expected.nd.dims));
        }
        let fits = match expected.class {
            Class::Float => out.dtype() == dtype || case.op == "cast",
            _ => out.dtype() == expected.dtype(dtype),
        };
        if !fits {
            return Err(format!("result {o} has dtype {}", out.dtype()));
        }
        let eps = dtype.epsilon().unwrap();
        let exact_dtype = out.dtype();
        compare(&values(out), &expected.nd, exact_dtype, |i, e| match &allowed.outs[o] {
            Bound::Exact => 0.0,
            Bound::Ulp(n) => n * ulp(e, dtype),
            Bound::Terms(t, k) => 4.0 * eps * k.sqrt() * t.data[i] + ulp(0.0, dtype),
        })
        .map_err(|e| format!("result {o}: {e}"))?;
    }
    Ok(())
}

fn check_grads(case: &Case, leaves: &[Tensor], dtype: DType, passes: f64, allowed: &Allowed) -> Check {
    let eps = dtype.epsilon().unwrap();
    for (i, expected) in case.gradients.iter().enumerate() {
        let (Some(expected), Some((terms, k))) = (expected, &allowed.grads[i]) else {
            if leaves[i].grad().is_some() {
                return Err(format!("operand {i} has a gradient that nobody asked for"));
            }
            continue;
        };
        let got = gradient(&leaves[i]);
        compare(&got, &expected.scale(passes), dtype, |j, e| {
            4.0 * eps * k.data[j].sqrt() * terms.data[j] * passes
                + (passes - 1.0) * ulp(e, dtype)
                + ulp(0.0, dtype)
        })
        .map_err(|e| format!("gradient of operand {i}: {e}"))?;
    }
    Ok(())
}

/// Forward and backward; twice if gradients accumulate in windows, so that they add up.
pub fn forward_and_backward(
    case: &Case,
    entry: &Entry,
    device: &Device,
    dtype: DType,
    at: Place,
    allowed: &Allowed,
) -> Check {
    let o = operands(case, dtype, device, at, true)?;
    let before: Vec<Option<u64>> = o.leaves.iter().map(|l| l.grad().map(|g| g.storage_id())).collect();
    let passes = if at == Place::Window { 2 } else { 1 };
    for pass in 1..=passes {
        // The views belong to the tape, which a backward pass releases.
        let views: Vec<Tensor> = o
            .leaves
            .iter()
            .zip(&case.layout)
            .map(|(l, v)| v.of(l).map_err(text))
            .collect::<Result<_, _>>()?;
        let views = if pass == 1 { &o.views } else { &views };
        let outs = (entry.run)(case, views).map_err(text)?;
        if pass == 1 || !entry.op.starts_with("batch_norm") {
            check_outs(case, &outs, dtype, allowed)?;
        }
        backward(case, &outs, &case.cotangents)?;
        check_grads(case, &o.leaves, dtype, pass as f64, allowed)?;
    }
    for (i, window) in o.gradients.iter().enumerate() {
        let Some(window) = window else { continue };
        if !window.margin_is_intact() {
            return Err(format!("the gradient of operand {i} was written beyond its window"));
        }
        if o.leaves[i].grad().map(|g| g.storage_id()) != before[i] {
            return Err(format!("the gradient of operand {i} has another storage than before"));
        }
    }
    Ok(())
}

/// Runs the form that writes into a destination, here a part of a larger tensor: it must give the same values in the
/// existing memory, and change nothing beside it. Returns whether there is such a form.
pub fn into_a_window(
    case: &Case,
    entry: &Entry,
    device: &Device,
    dtype: DType,
    at: Place,
) -> Result<bool, String> {
    no_grad(|| {
        let fresh = operands(case, dtype, device, at, false)?;
        let expected = (entry.run)(case, &fresh.views).map_err(text)?;
        let windows: Vec<Window> =
            expected.iter().map(|t| Window::new(t.dims(), t.dtype(), 3.0, device)).collect();
        let dests: Vec<Tensor> = windows.iter().map(|w| w.view.clone()).collect();
        let ids: Vec<u64> = dests.iter().map(Tensor::storage_id).collect();
        let again = operands(case, dtype, device, at, false)?;
        let Some(done) = (entry.into)(case, &again.views, &dests) else { return Ok(false) };
        done.map_err(|e| format!("into a window: {e}"))?;
        for (o, (dest, expected)) in dests.iter().zip(&expected).enumerate() {
            if dest.storage_id() != ids[o] {
                return Err(format!("into a window: destination {o} has another storage"));
            }
            let (got, expected) = (values(dest), values(expected));
            let same = |a: f64, b: f64| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
            if let Some(i) = (0..got.len()).find(|&i| !same(got[i], expected[i])) {
                return Err(format!(
                    "into a window: destination {o}, element {i}: {:e}, in a new tensor {:e}",
                    got[i], expected[i]
                ));
            }
            if !windows[o].margin_is_intact() {
                return Err(format!("into a window: destination {o} was written beyond its window"));
            }
        }
        Ok(true)
    })
}
