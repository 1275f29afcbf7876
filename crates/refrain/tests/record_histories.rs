//! A recorded step and the tape outside of it. A step refuses what eager code refuses, and histories end with values.

mod common;

use std::cell::{Cell, RefCell};
use std::slice::from_ref;

use common::{devices, failure, leaf, vector};
use refrain::{Activation, Device, Error, Result, Step, Tensor, no_grad};

/// A leaf with a buffer for its gradient.
fn parameter(values: &[f32], device: &Device) -> (Tensor, Tensor) {
    let (w, grad) = (leaf(values, device), vector(&vec![0.0; values.len()], device));
    w.set_grad(&grad).unwrap();
    (w, grad)
}

fn values(t: &Tensor) -> Vec<f32> {
    t.to_vec().unwrap()
}

#[test]
fn an_input_that_requires_a_gradient_is_refused_at_every_call() {
    for device in devices() {
        let (w, grad) = parameter(&[3.0], &device);
        let (x, of_input) = parameter(&[2.0], &device);
        let mut step = Step::new(&device, |x| {
            w.mul(&x[1])?.sum(())?.backward()?;
            Ok(vec![w.mul(&x[1])?])
        });
        let first = vector(&[1.0], &device);
        // A leaf, a result on the tape, and a view whose memory has a history since.
        let result = x.mul_scalar(2.0).unwrap();
        let whole = vector(&[1.0], &device);
        let stale = whole.unsqueeze(0).unwrap().squeeze(0).unwrap();
        whole.copy_from(&x).unwrap();
        let refused = |step: &mut Step<'_>| {
            for (input, what) in [
                (&x, "requires a gradient"),
                (&result, "requires a gradient"),
                (&stale, "copy_from has written to since"),
            ] {
                let e = failure(step, &[first.clone(), input.clone()]);
                assert!(matches!(e, Error::Autograd { op: "step", .. }), "{e}");
                let text = e.to_string();
                assert!(text.contains("input 1 (f32 [1])") && text.contains(what), "{text}");
                assert!(text.contains("detach()"), "{text}");
            }
        };
        refused(&mut step);
        assert_eq!((values(&grad), step.recordings()), (vec![0.0], 0));
        // Values alone are allowed, and without gradients nothing is lost.
        step.call(&[first.clone(), x.detach()]).unwrap();
        assert_eq!((values(&grad), values(&of_input)), (vec![2.0], vec![0.0]));
        refused(&mut step);
        assert_eq!(values(&grad), [2.0]);
        let mut forward = Step::new(&device, |x| Ok(vec![w.mul(&x[0])?]));
        no_grad(|| assert_eq!(forward.call(from_ref(&x)).unwrap().to_vec::<f32>(0).unwrap(), [6.0]));
    }
}

#[test]
fn an_input_that_the_closure_marks_has_its_gradient_in_each_call() {
    for device in devices() {
        let mut step = Step::new(&device, |x| {
            x[0].set_requires_grad(true)?;
            x[0].square()?.sum(())?.backward()?;
            Ok(vec![x[0].grad().ok_or("no gradient")?])
        });
        for v in [1.0, 5.0, -2.0] {
            let gradient = step.call(&[vector(&[v, 1.0], &device)]).unwrap().to_vec::<f32>(0).unwrap();
            assert_eq!(gradient, [2.0 * v, 2.0]);
        }
        step.finish().unwrap();
    }
}

#[test]
fn a_history_made_while_recording_that_outlives_it_is_an_escape() {
    for device in devices() {
        let (w, grad) = parameter(&[3.0], &device);
        let x = vector(&[2.0], &device);
        let (a, buffer) = (vector(&[7.0], &device), vector(&[1.0], &device));
        let kept: RefCell<Vec<Tensor>> = RefCell::default();
        type Write<'a> = Box<dyn Fn(&[Tensor]) -> Result<()> + 'a>;
        let writes: [(&str, Write<'_>); 6] = [
            ("mul", Box::new(|x| x[0].mul_into(&w, &buffer))),
            ("mul", Box::new(|_| a.mul_into(&w, &buffer))),
            ("exp", Box::new(|x| x[0].mul_into(&w, &buffer).and_then(|()| buffer.exp_into(&buffer)))),
            // In handles that the closure creates, of memory that exists already.
            (
                "mul",
                Box::new(|x| {
                    let own = buffer.detach();
                    x[0].mul_into(&w, &own)?;
                    kept.borrow_mut().push(own);
                    Ok(())
                }),
            ),
            (
                "mul",
                Box::new(|_| {
                    let own = buffer.detach();
                    w.mul_scalar_into(2.0, &own)?;
                    kept.borrow_mut().push(own);
                    Ok(())
                }),
            ),
            (
                "reshape",
                Box::new(|x| {
                    let own = buffer.detach();
                    x[0].mul_into(&w, &own)?;
                    kept.borrow_mut().push(own.unsqueeze(0)?);
                    Ok(())
                }),
            ),
        ];
        for (i, (name, write)) in writes.iter().enumerate() {
            let mut step = Step::new(&device, |x| {
                write(x)?;
                Ok(vec![])
            });
            let e = failure(&mut step, from_ref(&x));
            assert!(matches!(&e, Error::Escaped { op, .. } if op == name), "{i}: {e}");
            assert!(e.to_string().contains("history on the tape"), "{i}: {e}");
            // Nothing has run, and the outer tensors are unchanged.
            assert_eq!((values(&buffer), values(&grad)), (vec![1.0], vec![0.0]));
            assert!(!buffer.requires_grad());
            buffer.unsqueeze(0).unwrap().sum(()).unwrap();
            // What was kept has no gradient to give.
            for kept in kept.borrow_mut().drain(..) {
                assert_eq!(values(&kept), [1.0]);
                let e = kept.sum(()).and_then(|sum| sum.backward()).unwrap_err();
                assert!(matches!(&e, Error::Escaped { op, .. } if op == name), "{i}: {e}");
                assert_eq!(values(&grad), [0.0]);
            }
        }
        // The message names memory of the recording.
        let mut step = Step::new(&device, |x| {
            kept.borrow_mut().push(w.mul(&x[0])?);
            Ok(vec![])
        });
        let e = failure(&mut step, from_ref(&x));
        assert!(matches!(e, Error::Escaped { op: "mul", .. }), "{e}");
        assert!(e.to_string().contains("return the tensor as an output"), "{e}");
        // One that ends with the closure is none: in a handle of its own, or with other values written last.
        let mut step = Step::new(&device, |x| {
            let own = buffer.detach();
            x[0].mul_into(&w, &own)?;
            own.sum(())?.backward()?;
            x[0].mul_into(&w, &a)?;
            a.square()?.sum(())?.backward()?;
            a.copy_from(&x[0])?;
            Ok(vec![])
        });
        step.call(from_ref(&x)).unwrap();
        step.finish().unwrap();
        assert_eq!(values(&grad), [2.0 + 2.0 * 6.0 * 2.0]);
        assert_eq!((values(&buffer), values(&a)), (vec![6.0], vec![2.0]));
        assert!(!a.requires_grad());
        a.sum(()).unwrap();
    }
}

/// The result of an operation, in the words that eager code and a step share.
fn told(result: Result<()>) -> String {
    let text = result.map_or_else(|e| e.to_string(), |()| "fine".to_string());
    match text.split_once("requires a gradient") {
        Some((start, _)) => format!("{start}requires a gradient"),
        None => text,
    }
}

#[test]
fn a_replay_ends_histories_and_refuses_as_the_eager_code_does() {
    type Write = fn(&Tensor, &Tensor) -> Result<()>;
    let writes: [(&str, Write); 11] = [
        ("copy_from", |h, x| h.copy_from(x)),
        ("exp_into", |h, x| x.exp_into(h)),
        ("twice", |h, x| x.exp_into(h).and_then(|()| h.fill(1.0))),
        ("fill", |h, _| h.fill(1.0)),
        ("add_assign", |h, x| h.add_assign(x)),
        ("mul_scalar_assign", |h, _| h.mul_scalar_assign(2.0)),
        ("a history in between", |h, x| {
            let leaf = x.detach();
            leaf.set_requires_grad(true)?;
            leaf.exp_into(h).and_then(|()| h.copy_from(x))
        }),
        ("through a view", |h, x| h.unsqueeze(0)?.copy_from(&x.unsqueeze(0)?)),
        ("part", |h, _| h.narrow(0, 0, 1)?.narrow(0, 0, 1)?.fill(1.0)),
        ("detached", |h, x| h.detach().copy_from(x)),
        ("no_grad", |h, x| no_grad(|| h.copy_from(x))),
    ];
    let run = |device: &Device, write: Write, early: bool, recorded: bool| -> Vec<String> {
        let (w, grad) = parameter(&[3.0, 4.0], device);
        let x = vector(&[2.0, 1.0], device);
        let h = vector(&[1.0, 1.0], device);
        let mut step = Step::new(device, |x| {
            write(&h, &x[0])?;
            Ok(vec![])
        });
        let mut call = || match recorded {
            true => step.call(from_ref(&x)).map(drop),
            false => write(&h, &x),
        };
        let mut story = Vec::new();
        let sum = |t: &Tensor| t.sum(()).map(drop);
        let backward = |t: &Tensor| t.sum(()).and_then(|sum| sum.backward());
        for round in 0..4 {
            if !early || round > 0 {
                // A constant, whose views are unchanged.
                let view = h.unsqueeze(0).unwrap();
                story.extend([told(call()), told(sum(&view)), told(call()), told(sum(&h))]);
            }
            // A result that saves its operand, one that saves itself, a constant and a leaf.
            match round {
                0 => w.square_into(&h).unwrap(),
                1 => w.exp_into(&h).unwrap(),
                2 => h.fill(5.0).unwrap(),
                _ => h.set_requires_grad(true).unwrap(),
            }
            let view = h.unsqueeze(0).unwrap();
            story.push(told(call()));
            story.push(format!("{} {:?}", h.requires_grad(), values(&h)));
            story.extend([told(backward(&view)), told(backward(&h)), format!("{:?}", values(&grad))]);
            // It is a constant again, whatever it was before.
            match h.grad() {
                Some(_) => h.set_requires_grad(false).unwrap(),
                None => h.copy_from(&x).unwrap(),
            }
        }
        story
    };
    for device in devices() {
        for (name, write) in writes {
            for early in [false, true] {
                let eager = run(&device, write, early, false);
                assert_eq!(eager, run(&device, write, early, true), "{name}, {early}, on {device}");
                let refused =
                    ["overwritten", "written", "requires a gradient", "does not depend on anything"];
                assert!(eager.iter().any(|t| refused.iter().any(|r| t.contains(r))), "{name}: {eager:?}");
            }
        }
    }
}

#[test]
fn a_recording_leaves_the_histories_of_tensors_from_outside_alone() {
    for device in devices() {
        let (w, grad) = parameter(&[3.0], &device);
        let x = vector(&[2.0], &device);
        let h = vector(&[1.0], &device);
        let fails = Cell::new(true);
        let mut step = Step::new(&device, |x| {
            h.copy_from(&x[0])?;
            assert!(!h.requires_grad());
            if fails.get() {
                x[0].to_vec::<f32>()?;
            }
            Ok(vec![])
        });
        let result = |h: &Tensor| w.mul_scalar_into(5.0, h).and_then(|()| h.unsqueeze(0)).unwrap();
        // One that could not be recorded ...
        let view = result(&h);
        assert!(matches!(failure(&mut step, from_ref(&x)), Error::NotRecordable { .. }));
        h.sum(()).unwrap().backward().unwrap();
        assert_eq!(values(&grad), [5.0]);
        view.detach().sum(()).unwrap();
        fails.set(false);
        step.call(from_ref(&x)).unwrap();
        assert!(!h.requires_grad());
        // ... and one for comparing.
        let view = result(&h);
        step.check().unwrap();
        assert_eq!(values(&view), [15.0]);
        view.sum(()).unwrap().backward().unwrap();
        assert_eq!(values(&grad), [10.0]);
        step.finish().unwrap();
    }
}

#[test]
fn a_tape_that_starts_outside_is_refused_where_eager_code_fails() {
    for device in devices() {
        let (w, grad) = parameter(&[3.0], &device);
        let outside = || w.square().unwrap().sum(()).unwrap();
        // The closure overwrites what the tape saved.
        let h = outside();
        let mut step = Step::new(&device, |_| {
            no_grad(|| w.fill(100.0))?;
            h.backward_retain()?;
            Ok(vec![])
        });
        let e = failure(&mut step, &[]);
        assert!(matches!(e, Error::SavedValueOverwritten { op: "square", by: "fill", .. }), "{e}");
        assert_eq!((values(&w), values(&grad)), (vec![3.0], vec![0.0]));
        h.backward().unwrap();
        assert_eq!(values(&grad), [6.0]);

        // It does so after the backward pass: once is allowed, twice is not. Then the caller does so between two
        // calls.
        for own in [true, false] {
            no_grad(|| w.fill(3.0).and_then(|()| grad.fill(0.0))).unwrap();
            let h = outside();
            let mut step = Step::new(&device, |_| {
                h.backward_retain()?;
                no_grad(|| if own { w.fill(100.0) } else { Ok(()) })?;
                Ok(vec![])
            });
            step.call(&[]).unwrap();
            assert_eq!(values(&grad), [6.0]);
            if !own {
                step.call(&[]).unwrap();
                step.profile(&[], 1).unwrap();
                assert_eq!(values(&grad), [18.0]);
                no_grad(|| w.fill(100.0)).unwrap();
            }
            let gathered = values(&grad);
            for e in [failure(&mut step, &[]), step.profile(&[], 1).map(drop).unwrap_err()] {
                assert!(matches!(e, Error::SavedValueOverwritten { op: "square", by: "fill", .. }), "{e}");
            }
            assert_eq!(values(&grad), gathered);
        }

        // A backward pass that releases its tape cannot be repeated, and a recording releases nothing.
        no_grad(|| w.fill(3.0).and_then(|()| grad.fill(0.0))).unwrap();
        let h = outside();
        let mut step = Step::new(&device, |x| {
            h.mul(&x[0])?.sum(())?.backward()?;
            Ok(vec![])
        });
        let mut heedless = Step::new(&device, |_| {
            let _ = h.backward();
            Ok(vec![])
        });
        for e in [failure(&mut step, &[vector(&[2.0], &device)]), failure(&mut heedless, &[])] {
            assert!(matches!(e, Error::NotRecordable { op: "sum", .. }), "{e}");
            assert!(e.to_string().contains("backward_retain"), "{e}");
        }
        let mut step = Step::new(&device, |_| {
            h.backward_retain()?;
            Ok(vec![])
        });
        step.call(&[]).unwrap();
        h.backward().unwrap();
        assert_eq!(values(&grad), [12.0]);
        let e = failure(&mut step, &[]);
        assert!(matches!(e, Error::Autograd { op: "sum" | "square", .. }), "{e}");
        assert!(e.to_string().contains("has released the values"), "{e}");
        assert_eq!(values(&grad), [12.0]);
    }
}

/// A recorded step that trains `[w, other]` by plain gradient descent, after two calls. The next check on its own would be
/// at call 10.
fn trained<'a>(device: &Device, w: &'a Tensor, other: &'a Tensor) -> Step<'a> {
    let mut step = Step::new(device, move |x| {
        let loss = w.mul(&x[0])?.add(other)?.square()?.sum(())?;
        loss.backward()?;
        Ok(vec![loss])
    });
    for _ in 0..2 {
        step.call(&[vector(&[1.0, 2.0], device)]).unwrap();
    }
    step
}

#[test]
fn what_requires_a_gradient_may_not_change_between_two_calls() {
    for device in devices() {
        let x = [vector(&[1.0, 2.0], &device)];
        let buffer = || vector(&[0.0, 0.0], &device);
        type Change<'a> = &'a dyn Fn(&Tensor) -> Result<()>;
        let free: Change<'_> = &|w| {
            w.set_requires_grad(true)?;
            w.set_leaf_name("stem.weight")?;
            w.set_grad(&buffer())
        };
        let cases: [(bool, Change<'_>, &str); 3] = [
            (false, free, "stem.weight (f32 [2]) requires a gradient now"),
            (true, &|w| w.set_requires_grad(false), "body.weight (f32 [2]) no longer requires a gradient"),
            (true, &|w| w.set_grad(&buffer()), "body.weight (f32 [2]) has its gradient in other memory now"),
        ];
        for (trained_at_first, change, what) in cases {
            let (other, _) = parameter(&[1.0, 1.0], &device);
            let w = vector(&[3.0, -1.0], &device);
            if trained_at_first {
                free(&w).unwrap();
                w.set_leaf_name("body.weight").unwrap();
            }
            let before = w.grad();
            let mut step = trained(&device, &w, &other);
            let gradient = values(&other.grad().unwrap());
            change(&w).unwrap();
            for _ in 0..2 {
                let error = failure(&mut step, &x);
                let text = error.to_string();
                assert!(matches!(error, Error::RecordingChanged { .. }), "{text}");
                assert!(text.contains(what) && text.contains("make a new Step"), "{text}");
                assert!(!text.contains("intermediate"), "{text}");
            }
            assert_eq!(values(&other.grad().unwrap()), gradient, "a call that failed has run");

            // As it was, the step goes on.
            w.set_requires_grad(trained_at_first).unwrap();
            if let Some(before) = before {
                w.set_grad(&before).unwrap();
            }
            step.call(&x).unwrap();
            step.finish().unwrap();
        }
    }
}

#[test]
fn a_step_without_a_backward_pass_is_told_to_compute_inside_no_grad() {
    for device in devices() {
        let x = [vector(&[1.0, 2.0], &device)];
        let (w, _) = parameter(&[3.0, -1.0], &device);
        let forward = |x: &Tensor| {
            let (x, w) = (x.reshape([1, 2])?, w.reshape([1, 2])?);
            x.linear(&w, None, Activation::Gelu, None) // it keeps what GELU is applied to
        };
        let mut step = Step::new(&device, |x| Ok(vec![forward(&x[0])?.detach()]));
        let mut without = Step::new(&device, |x| Ok(vec![no_grad(|| forward(&x[0]))?]));
        for step in [&mut step, &mut without] {
            step.call(&x).unwrap();
            step.call(&x).unwrap();
        }
        w.set_requires_grad(false).unwrap();
        let error = failure(&mut step, &x).to_string();
        assert!(error.contains("(f32 [2]) no longer requires a gradient"), "{error}");
        assert!(error.contains("inside no_grad") && !error.contains("did when"), "{error}");
        without.call(&x).unwrap();
        without.finish().unwrap();
    }
}

#[test]
fn a_weight_that_is_the_result_of_an_operation_now_is_found_before_the_next_call() {
    for device in devices() {
        let (other, gradient) = parameter(&[1.0, 1.0], &device);
        let w = vector(&[3.0, -1.0], &device);
        let mut step = trained(&device, &w, &other);
        let before = values(&gradient);
        w.copy_from(&leaf(&[1.0, 1.0], &device)).unwrap();
        let error = failure(&mut step, &[vector(&[1.0, 2.0], &device)]);
        assert!(matches!(error, Error::NotRecordable { op: "copy_from", .. }), "{error}");
        assert_eq!(values(&gradient), before);
    }
}

#[test]
fn a_history_that_ends_between_two_calls_is_found_before_the_next_one() {
    for device in devices() {
        let x = [vector(&[1.0, 2.0], &device)];
        type End<'a> = &'a dyn Fn(&Tensor) -> Result<()>;
        let by_eager_code: End<'_> = &|t| t.copy_from(&vector(&[5.0, 5.0], &device));
        let by_a_replay: End<'_> = &|t| {
            let mut step = Step::new(&device, |x| {
                t.copy_from(&x[0])?;
                Ok(vec![])
            });
            step.call(&x)?;
            step.finish()
        };
        for end in [by_eager_code, by_a_replay] {
            let (w, gradient) = parameter(&[3.0, -1.0], &device);
            let (other, _) = parameter(&[1.0, 1.0], &device);
            let t = vector(&[0.0, 0.0], &device);
            t.copy_from(&w).unwrap();
            let mut step = Step::new(&device, |x| {
                let loss = t.mul(&x[0])?.add(&other)?.sum(())?;
                loss.backward_retain()?;
                Ok(vec![loss.detach()])
            });
            step.call(&x).unwrap();
            step.call(&x).unwrap();
            assert_eq!(values(&gradient), [2.0, 4.0]);
            end(&t).unwrap();
            let error = failure(&mut step, &x);
            assert!(error.to_string().contains("(f32 [2]) no longer requires a gradient"), "{error}");
            assert_eq!(values(&gradient), [2.0, 4.0]);
        }
    }
}

#[test]
fn changes_that_a_backward_pass_does_not_see_cost_no_recording() {
    for device in devices() {
        let ((w, gradient), (other, _)) = (parameter(&[3.0, 1.0], &device), parameter(&[1.0, 1.0], &device));
        let unused = vector(&[1.0], &device);
        let x = [vector(&[1.0, 2.0], &device)];
        let mut step = trained(&device, &w, &other);
        let recordings = step.recordings();
        for _ in 0..3 {
            unused.set_requires_grad(true).unwrap();
            unused.set_requires_grad(false).unwrap();
            w.set_requires_grad(false).unwrap();
            w.set_requires_grad(true).unwrap();
            w.set_grad(&gradient).unwrap();
            step.call(&x).unwrap();
        }
        assert_eq!(step.recordings(), recordings);
        step.finish().unwrap();
    }
}

#[test]
fn a_change_of_a_tensor_that_only_no_grad_reads_is_none() {
    for device in devices() {
        let (scale, (w, _)) = (vector(&[2.0, 2.0], &device), parameter(&[3.0, 1.0], &device));
        let x = [vector(&[1.0, 2.0], &device)];
        let mut step = Step::new(&device, |x| {
            let weight = no_grad(|| scale.mul(&x[0]))?;
            w.mul(&weight)?.sum(())?.backward()?;
            Ok(vec![weight])
        });
        step.call(&x).unwrap();
        step.call(&x).unwrap();
        let recordings = step.recordings();
        scale.set_requires_grad(true).unwrap();
        step.call(&x).unwrap();
        assert_eq!(step.recordings(), recordings);
        step.finish().unwrap();
    }
}

#[test]
fn a_closure_may_itself_turn_gradients_off_and_on() {
    for device in devices() {
        let ((w, gradient), (other, _)) = (parameter(&[3.0, 1.0], &device), parameter(&[1.0, 1.0], &device));
        let x = [vector(&[1.0, 2.0], &device)];
        let mut step = Step::new(&device, |x| {
            w.set_requires_grad(false)?;
            let loss = w.mul(&x[0])?.add(&other)?.square()?.sum(())?;
            loss.backward()?;
            w.set_requires_grad(true)?;
            w.set_grad(&gradient)?;
            Ok(vec![loss])
        });
        for _ in 0..8 {
            step.call(&x).unwrap();
        }
        assert_eq!(step.recordings(), 3, "two at the first call, one before the second");
        step.finish().unwrap();
    }
}

#[test]
fn a_gradient_behind_the_tape_outside_that_is_given_other_memory_is_found_at_the_next_call() {
    for device in devices() {
        let (w, grad) = parameter(&[3.0], &device);
        let t = w.mul(&vector(&[2.0], &device)).unwrap();
        let x = vector(&[1.0], &device);
        type Pass<'a> = Box<dyn Fn(&[Tensor]) -> Result<()> + 'a>;
        let passes: [(Pass<'_>, f32); 2] = [
            (Box::new(|x| t.mul(&x[0])?.sum(())?.backward_retain()), 2.0),
            (Box::new(|x| w.backward_with(&x[0])), 1.0),
        ];
        for (pass, each) in passes {
            grad.fill(0.0).unwrap();
            w.set_grad(&grad).unwrap();
            let mut step = Step::new(&device, |x| {
                pass(x)?;
                Ok(vec![])
            });
            for _ in 0..3 {
                step.call(from_ref(&x)).unwrap();
            }
            assert_eq!(values(&grad), [3.0 * each]);
            let moved = vector(&[0.0], &device);
            w.set_grad(&moved).unwrap();
            let e = failure(&mut step, from_ref(&x));
            assert!(matches!(e, Error::RecordingChanged { .. }), "{e}");
            assert!(e.to_string().contains("has its gradient in other memory now"), "{e}");
            assert_eq!((values(&grad), values(&moved)), (vec![3.0 * each], vec![0.0]));
            w.set_grad(&grad).unwrap();
            step.call(from_ref(&x)).unwrap();
            assert_eq!(values(&grad), [4.0 * each]);
            step.finish().unwrap();
        }
    }
}
