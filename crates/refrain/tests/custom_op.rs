//! Operations of the user's own, composed of existing ones, with a gradient of their own.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use common::devices;
use common::training::trained;
use refrain::{DType, Device, Error, Result, Step, Tensor, custom_op, gradcheck, no_grad};

/// `ln(1 + e^x)` with its exact derivative, the logistic function. Saves the operand.
fn softplus(x: &Tensor) -> Result<Tensor> {
    let results = custom_op(
        "softplus",
        &[x],
        |x| {
            // The part above 0, and a rest between 0 and ln 2.
            let rest = ((-x[0].abs()?)?.exp()? + 1.0)?.log()?;
            Ok((vec![(x[0].relu()? + rest)?], vec![x[0].clone()]))
        },
        |gradients, saved| Ok(vec![Some(gradients[0].mul(&saved[0].sigmoid()?)?)]),
    )?;
    Ok(results[0].clone())
}

/// Sum and difference; the gradients are those of the formula, times 10 for the second operand.
fn both(a: &Tensor, b: &Tensor) -> Result<Vec<Tensor>> {
    custom_op(
        "both",
        &[a, b],
        |x| Ok((vec![(&x[0] + &x[1])?, (&x[0] - &x[1])?], vec![])),
        |g, _| Ok(vec![Some((&g[0] + &g[1])?), Some(((&g[0] - &g[1])? * 10.0)?)]),
    )
}

fn leaf(values: &[f32], device: &Device) -> Tensor {
    common::leaf(values, device)
}

#[test]
fn values_and_gradients_are_those_of_the_closures() {
    for device in devices() {
        let x = leaf(&[-9.0, -1.0, 0.0, 2.0, 90.0], &device);
        let y = softplus(&x).unwrap();
        y.sum(()).unwrap().backward().unwrap();
        let exact = |v: f64| v.max(0.0) + (-v.abs()).exp().ln_1p();
        let slope = |v: f64| 1.0 / (1.0 + (-v).exp());
        let grad = x.grad().unwrap();
        for (i, v) in x.to_vec::<f32>().unwrap().into_iter().map(f64::from).enumerate() {
            let (value, derivative) = (y.to_vec::<f32>().unwrap()[i], grad.to_vec::<f32>().unwrap()[i]);
            assert!(
                (f64::from(value) - exact(v)).abs() <= 1e-6 * (1.0 + exact(v)),
                "{device}: {value} at {v}"
            );
            assert!((f64::from(derivative) - slope(v)).abs() <= 1e-6, "{device}: {derivative} at {v}");
        }
        let wide = x.detach().to_dtype(DType::F64).unwrap().narrow(0, 1, 3).unwrap().copy().unwrap();
        wide.set_requires_grad(true).unwrap();
        gradcheck(|x| softplus(&x[0])?.sum(()), &[wide], 1e-6).unwrap();
    }
}

#[test]
fn each_result_has_a_gradient_and_an_unused_one_gives_zeros() {
    for device in devices() {
        let (a, b) = (leaf(&[1.0, 2.0], &device), leaf(&[3.0, 5.0], &device));
        let results = both(&a, &b).unwrap();
        assert_eq!(results[0].to_vec::<f32>().unwrap(), [4.0, 7.0]);
        results[1].sum(()).unwrap().backward().unwrap();
        assert_eq!(a.grad().unwrap().to_vec::<f32>().unwrap(), [1.0, 1.0]);
        assert_eq!(b.grad().unwrap().to_vec::<f32>().unwrap(), [-10.0, -10.0]);
        // One tensor as both operands gets both gradients.
        let c = leaf(&[1.0], &device);
        both(&c, &c).unwrap()[0].sum(()).unwrap().backward().unwrap();
        assert_eq!(c.grad().unwrap().to_vec::<f32>().unwrap(), [11.0]);
    }
}

#[test]
fn an_overwritten_saved_value_is_an_error_at_the_backward_pass() {
    for device in devices() {
        let x = leaf(&[1.0, 2.0], &device);
        let y = softplus(&x).unwrap().sum(()).unwrap();
        no_grad(|| x.fill(0.0)).unwrap();
        let error = y.backward().unwrap_err();
        assert!(
            matches!(error, Error::SavedValueOverwritten { op: "softplus", by: "fill", .. }),
            "{error:?}"
        );
        assert!(error.to_string().contains("saved value 0 (f32 [2])"), "{error}");
        // The same in a step, whose replay would do it.
        let mut step = Step::new(&device, |_| {
            let y = softplus(&x)?.sum(())?;
            no_grad(|| x.fill(0.0))?;
            y.backward()?;
            Ok(vec![])
        });
        let refused = step.call(&[]).map(drop);
        assert!(matches!(refused, Err(Error::SavedValueOverwritten { op: "softplus", .. })), "{refused:?}");
    }
}

#[test]
fn a_forward_closure_that_writes_into_an_operand_is_refused() {
    for device in devices() {
        let x = leaf(&[1.0, 2.0], &device);
        let bad = |x: &Tensor| {
            custom_op(
                "doubled",
                &[x],
                |x| {
                    Ok((vec![x[0].copy()?], {
                        x[0].mul_scalar_assign(2.0)?;
                        vec![]
                    }))
                },
                |g, _| Ok(vec![Some(g[0].clone())]),
            )
        };
        let eager = bad(&x).map(drop);
        assert!(matches!(eager, Err(Error::Aliased { op: "doubled", .. })), "{eager:?}");
        let mut step = Step::new(&device, |_| {
            bad(&x)?;
            Ok(vec![])
        });
        let recorded = step.call(&[]).map(drop);
        assert!(matches!(recorded, Err(Error::Aliased { op: "doubled", .. })), "{recorded:?}");
    }
}

#[test]
fn a_result_is_memory_of_its_own() {
    for device in devices() {
        let x = leaf(&[1.0, 2.0], &device);
        let identity = |gradients: &[Tensor], _: &[Tensor]| Ok(vec![Some(gradients[0].clone())]);
        let y = custom_op("same", &[&x], |x| Ok((vec![x[0].clone()], vec![])), identity).unwrap().remove(0);
        assert!(!y.shares_storage(&x));
        no_grad(|| x.fill(9.0)).unwrap();
        assert_eq!(y.to_vec::<f32>().unwrap(), [1.0, 2.0]);
        // A tensor that the closure captures stays without a history.
        let captured = Tensor::ones([2], DType::F32, &device).unwrap();
        let z = custom_op("captured", &[&x], |_| Ok((vec![captured.clone()], vec![])), identity)
            .unwrap()
            .remove(0);
        assert!(z.requires_grad() && !captured.requires_grad() && !z.shares_storage(&captured));
        // Two views of one new tensor.
        let halves = |x: &[Tensor]| {
            let twice = (&x[0] * 2.0)?;
            Ok((vec![twice.narrow(0, 0, 1)?, twice.narrow(0, 1, 1)?], vec![]))
        };
        let parts =
            custom_op("halves", &[&x], halves, |g, _| Ok(vec![Some(Tensor::concat(&[&g[0], &g[1]], 0)?)]));
        let parts = parts.unwrap();
        assert!(!parts[0].shares_storage(&parts[1]));
        assert_eq!(parts[1].to_vec::<f32>().unwrap(), [18.0]);
    }
}

#[test]
fn gradients_that_do_not_fit_are_refused() {
    type Gradients = fn(&[Tensor], &[Tensor]) -> Result<Vec<Option<Tensor>>>;
    for device in devices() {
        let run = |backward: Gradients| {
            let x = leaf(&[1.0, 2.0], &device);
            let y = custom_op("mine", &[&x], |x| Ok((vec![x[0].exp()?], vec![])), backward).unwrap();
            y[0].sum(()).unwrap().backward().map(|()| x.grad())
        };
        let count = run(|_, _| Ok(vec![])).unwrap_err();
        assert!(matches!(count, Error::Autograd { op: "mine", .. }), "{count}");
        assert!(count.to_string().contains("0 gradients for 1 operands"), "{count}");
        let shape = run(|g, _| Ok(vec![Some(g[0].sum(())?)])).unwrap_err();
        assert!(matches!(shape, Error::ShapeMismatch { op: "mine", .. }), "{shape}");
        let dtype = run(|g, _| Ok(vec![Some(g[0].to_dtype(DType::F64)?)])).unwrap_err();
        assert!(matches!(dtype, Error::DTypeMismatch { op: "mine", .. }), "{dtype}");
        assert!(run(|_, _| Ok(vec![None])).unwrap().is_none());
    }
}

#[test]
fn operands_and_results_are_checked() {
    let device = Device::cpu();
    let x = leaf(&[1.0], &device);
    let none = |_: &[Tensor], _: &[Tensor]| Ok(vec![None]);
    let invalid = |result: Result<Vec<Tensor>>, part: &str| {
        let error = result.unwrap_err();
        assert!(
            matches!(error, Error::InvalidArgument { op: "mine", .. }) && error.to_string().contains(part),
            "{error}"
        );
    };
    invalid(custom_op("mine", &[], |_| Ok((vec![], vec![])), none), "no operand");
    invalid(custom_op("mine", &[&x], |_| Ok((vec![], vec![])), none), "no result");
    let many = |x: &[Tensor]| Ok((vec![x[0].exp()?], vec![x[0].clone(); 32]));
    invalid(custom_op("mine", &[&x], many, none), "more than 32");
    let failed = custom_op("mine", &[&x], |x| Ok((vec![x[0].reshape([2])?], vec![])), none);
    assert!(matches!(failed, Err(Error::ShapeMismatch { op: "reshape", .. })));
    let elsewhere = Tensor::ones([1], DType::F32, &"sim".parse().unwrap()).unwrap();
    let mixed = custom_op("mine", &[&x, &elsewhere], |x| Ok((vec![x[0].exp()?], vec![])), none);
    assert!(matches!(mixed, Err(Error::DeviceMismatch { op: "mine", .. })));
}

#[test]
fn the_backward_closure_runs_only_where_a_gradient_is_needed() {
    let device = Device::cpu();
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = |x: &Tensor| {
        let runs = runs.clone();
        let backward = move |g: &[Tensor], _: &[Tensor]| {
            runs.fetch_add(1, Ordering::Relaxed);
            Ok(vec![Some(g[0].clone())])
        };
        custom_op("counted", &[x], |x| Ok((vec![x[0].exp()?], vec![])), backward).unwrap().remove(0)
    };
    let x = leaf(&[1.0], &device);
    assert!(!counted(&x.detach()).requires_grad());
    assert!(!no_grad(|| counted(&x)).requires_grad());
    let y = counted(&x).sum(()).unwrap();
    y.backward_retain().unwrap();
    y.backward().unwrap();
    assert_eq!(runs.load(Ordering::Relaxed), 2);
    assert!(matches!(y.backward(), Err(Error::Autograd { .. })));
}

#[test]
fn a_recorded_step_gives_the_bits_of_eager_code() {
    for device in devices() {
        let start = leaf(&[0.3, -0.7, 1.1], &device).detach();
        let forward = |w: &Tensor, x: &Tensor| both(&softplus(&(w * x)?)?, w);
        let [recorded, eager] = [true, false].map(|recorded| trained(&start, 0.01, recorded, forward).0);
        assert_eq!(recorded, eager, "{device}");
    }
}
