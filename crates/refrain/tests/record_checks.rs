//! The errors, detections and limits of a recorded step.

mod common;

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::slice::from_ref;
use std::time::{Duration, Instant};

use common::{assert_usable, devices, failure, vector};
use refrain::{DType, Device, Error, Generator, Profile, Result, Step, StepOptions, Tensor, no_grad};

type Closure<'a> = Box<dyn Fn(&[Tensor]) -> Result<Tensor> + 'a>;

#[test]
fn what_the_host_would_have_to_do_in_a_replay_is_refused_by_name() {
    for device in devices() {
        let outside = vector(&[1.0, 2.0], &device);
        let generator = Generator::new(&device, 1).unwrap();
        let inner = |x: &Tensor| -> Result<()> {
            let mut step = Step::new(&device, |x| Ok(vec![x[0].clone()]));
            step.call(from_ref(x)).map(|_| ())
        };
        let other = RefCell::new(Step::new(&device, |x| Ok(vec![x[0].exp()?])));
        other.borrow_mut().call(from_ref(&outside)).unwrap();
        let last = Cell::new(Some(Step::new(&device, |x| Ok(vec![x[0].exp()?]))));
        let finish = || last.take().map_or(Ok(()), Step::finish);
        let cases: Vec<(&str, Closure<'_>)> = vec![
            ("to_vec", Box::new(|x| x[0].to_vec::<f32>().map(|_| x[0].clone()))),
            ("to_scalar", Box::new(|x| x[0].sum(())?.to_scalar::<f32>().map(|_| x[0].clone()))),
            ("read_into", Box::new(|x| x[0].read_into(&mut [0.0f32; 2]).map(|_| x[0].clone()))),
            ("write_from", Box::new(|x| x[0].zeros_like()?.write_from(&[1.0f32, 1.0]).map(|_| x[0].clone()))),
            ("write_from", Box::new(|x| outside.write_from(&[1.0f32, 1.0]).map(|_| x[0].clone()))),
            ("write_pieces", Box::new(|x| outside.write_pieces(|_, _| Ok(())).map(|_| x[0].clone()))),
            ("from_slice", Box::new(|_| Tensor::from_slice(&[1.0f32], 1, &device))),
            ("synchronize", Box::new(|x| device.synchronize().map(|_| x[0].clone()))),
            ("step", Box::new(|x| inner(&x[0]).map(|_| x[0].clone()))),
            ("step", Box::new(|x| other.borrow_mut().call(x).map(|_| x[0].clone()))),
            ("step", Box::new(|x| other.borrow_mut().check().map(|_| x[0].clone()))),
            ("step", Box::new(|x| finish().map(|_| x[0].clone()))),
            ("read_into", Box::new(|x| generator.state().map(|_| x[0].clone()))),
            ("write_from", Box::new(|x| generator.set_state(1, 0).map(|_| x[0].clone()))),
        ];
        for (name, closure) in cases {
            let mut step = Step::new(&device, |x| Ok(vec![closure(x)?]));
            let error = failure(&mut step, from_ref(&outside));
            assert!(matches!(&error, Error::NotRecordable { op, .. } if *op == name), "{name}: {error}");
            assert!(error.to_string().starts_with(&format!("{name} can't be part of")), "{error}");
            assert_eq!(outside.to_vec::<f32>().unwrap(), [1.0, 2.0]);
            assert_eq!(generator.state().unwrap(), (1, 0));
            assert_usable(&device);
        }
    }
}

#[test]
fn work_on_another_device_is_refused() {
    let cpu = &Device::cpu();
    let gpu = devices().rfind(|d| d != cpu);
    let gpu = &gpu.unwrap_or_else(|| Device::sim(Profile::Discrete, 0));
    for (device, other) in [(cpu, gpu), (gpu, cpu)] {
        let [x, y] = [device, other].map(|d| vector(&[1.0, 2.0], d));
        let cases: Vec<(&str, Closure<'_>)> = vec![
            ("exp", Box::new(|_| y.exp())),
            ("zeros", Box::new(|_| Tensor::zeros([2], DType::F32, other))),
            ("to_device", Box::new(|x| x[0].to_device(other))),
            ("to_device", Box::new(|_| y.to_device(device))),
            ("step", Box::new(|_| Ok(y.clone()))),
        ];
        for (name, closure) in cases {
            let mut step = Step::new(device, |x| Ok(vec![closure(x)?]));
            let error = failure(&mut step, from_ref(&x));
            assert!(matches!(&error, Error::NotRecordable { op, .. } if *op == name), "{name}: {error}");
        }
        let error = failure(&mut Step::new(device, |x| Ok(x.to_vec())), from_ref(&y));
        assert!(matches!(error, Error::DeviceMismatch { .. }), "{error}");
        assert_usable(device);
    }
}

#[test]
fn a_refusal_that_the_closure_ignores_counts() {
    for device in devices() {
        let x = vector(&[1.0], &device);
        let mut step = Step::new(&device, |x| {
            let rate = x[0].to_scalar::<f32>().unwrap_or(0.5);
            Ok(vec![x[0].mul_scalar(rate.into())?])
        });
        let error = failure(&mut step, from_ref(&x));
        assert!(matches!(error, Error::NotRecordable { op: "to_scalar", .. }), "{error}");
        // Also when only a step was made, and never called.
        let mut step = Step::new(&device, |x| {
            drop(Step::new(&device, |x| Ok(x.to_vec())));
            Ok(x.to_vec())
        });
        let error = failure(&mut step, from_ref(&x));
        assert!(matches!(error, Error::NotRecordable { op: "step", .. }), "{error}");
        // And when another step was checked.
        let other = RefCell::new(Step::new(&device, |x| Ok(vec![x[0].exp()?])));
        other.borrow_mut().call(from_ref(&x)).unwrap();
        let mut step = Step::new(&device, |x| {
            let _ = other.borrow_mut().check();
            Ok(x.to_vec())
        });
        let error = failure(&mut step, &[x]);
        assert!(matches!(error, Error::NotRecordable { op: "step", .. }), "{error}");
    }
}

#[test]
fn a_learning_rate_on_the_host_is_found() {
    for device in devices() {
        let rate = Cell::new(0.5);
        let weight = vector(&[1.0, 2.0], &device);
        let mut step = Step::new(&device, |x| {
            weight.sub_into(&x[0].mul_scalar(rate.get())?, &weight)?;
            Ok(vec![])
        });
        let x = vector(&[1.0, 1.0], &device);
        step.call(from_ref(&x)).unwrap();
        step.check().unwrap();
        rate.set(0.25);
        // By the second call, before it runs; also if the caller continues.
        for _ in 0..3 {
            let error = failure(&mut step, from_ref(&x));
            assert!(matches!(error, Error::RecordingChanged { .. }), "{error}");
        }
        assert_eq!(weight.to_vec::<f32>().unwrap(), [0.5, 1.5]);
        rate.set(0.5);
        step.call(from_ref(&x)).unwrap();
        rate.set(0.25);
        step.check().unwrap_err();
        failure(&mut step, &[x]);
        assert_eq!(weight.to_vec::<f32>().unwrap(), [0.0, 1.0]);
        let error = step.finish().unwrap_err();
        assert!(matches!(error, Error::RecordingChanged { launch: 0, op: "mul", .. }), "{error}");
        let message = error.to_string();
        for part in ["launch 0 (mul)", "0.5", "0.25", "in a tensor on the device"] {
            assert!(message.contains(part), "{message}");
        }
        assert_usable(&device);
    }
}

#[test]
fn a_counter_on_the_host_is_found_at_the_first_call() {
    for device in devices() {
        let count = Cell::new(0);
        let weight = vector(&[1.0], &device);
        let mut step = Step::new(&device, |_| {
            count.set(count.get() + 1);
            weight.add_scalar_assign(f64::from(count.get()))?;
            Ok(vec![])
        });
        let error = failure(&mut step, &[]);
        assert!(matches!(error, Error::RecordingChanged { launch: 0, .. }), "{error}");
        assert_eq!(weight.to_vec::<f32>().unwrap(), [1.0], "nothing has run");
    }
}

#[test]
fn a_branch_on_the_host_and_a_tensor_made_anew_are_found() {
    for device in devices() {
        let late = Cell::new(false);
        let mask = RefCell::new(vector(&[1.0, 0.0], &device));
        let x = vector(&[1.0, 2.0], &device);

        let mut branch = Step::new(&device, |x| {
            let y = x[0].exp()?;
            Ok(vec![if late.get() { y.relu()? } else { y }])
        });
        branch.call(from_ref(&x)).unwrap();
        let mut less = Step::new(&device, |x| {
            let y = x[0].exp()?;
            Ok(vec![if late.get() { y } else { y.relu()? }])
        });
        less.call(from_ref(&x)).unwrap();
        let mut other = Step::new(&device, |x| Ok(vec![x[0].mul(&mask.borrow())?]));
        other.call(from_ref(&x)).unwrap();
        let mut returns = Step::new(&device, |x| {
            Ok(if late.get() { vec![x[0].exp()?] } else { vec![x[0].exp()?, x[0].clone()] })
        });
        returns.call(from_ref(&x)).unwrap();
        let mut shape = Step::new(&device, |x| Ok(vec![x[0].narrow(0, late.get() as usize, 1)?.exp()?]));
        shape.call(&[x]).unwrap();

        late.set(true);
        *mask.borrow_mut() = vector(&[0.0, 1.0], &device);
        for (step, what) in [
            (
                branch,
                "the closure also runs relu here: the step had 1 launches when it was recorded, and has 2 now",
            ),
            (
                less,
                "the closure no longer runs relu here: the step had 2 launches when it was recorded, and has 1 now",
            ),
            (other, "operand 1 (f32 [2]) is now another tensor from outside the step"),
            (returns, "the closure returned 2 tensors when it was recorded, and returns 1 now"),
            (
                shape,
                "the first element of operand 0 (f32 [1]) in its memory was 0 when it was recorded, and is 1 now",
            ),
        ] {
            let error = step.finish().unwrap_err();
            assert!(matches!(error, Error::RecordingChanged { .. }), "{error}");
            assert!(error.to_string().contains(what), "{error}");
        }
    }
}

#[test]
fn a_change_is_told_in_words() {
    for device in devices() {
        let late = Cell::new(false);
        let x = vector(&[1.0, 2.0, 3.0, 4.0], &device).reshape([2, 2]).unwrap();
        let whole = Tensor::ones([2, 2], DType::I64, &device).unwrap();
        let wide = Tensor::ones([2, 3], DType::F32, &device).unwrap();
        let or = |now: &Tensor, then: &Tensor| if late.get() { now.clone() } else { then.clone() };
        let cases: Vec<(&str, Closure<'_>)> = vec![
            (
                "launch 0 (pow): its parameter `scalar` was 0.1 when it was recorded, and is 3 now; ",
                Box::new(|x| x[0].pow_scalar(if late.get() { 3.0 } else { 0.1 })),
            ),
            (
                "launch 0 (softmax): its parameter `extent.outer` was 1 when it was recorded, and is 2 now; ",
                Box::new(|x| x[0].softmax(if late.get() { 1 } else { 0 })),
            ),
            (
                "launch 1 (exp): the closure now runs neg here instead of exp; ",
                Box::new(|x| x[0].relu().and_then(|y| if late.get() { y.neg() } else { y.exp() })),
            ),
            (
                "launch 0 (abs): the dtype of operand 0 was f32 when it was recorded, and is i64 now; ",
                Box::new(|x| or(&whole, &x[0]).abs()),
            ),
            (
                "launch 0 (abs): the shape of operand 0 was [2, 2] when it was recorded, and is [2, 3] now; ",
                Box::new(|x| or(&wide, &x[0]).abs()),
            ),
            (
                "launch 0 (abs): the strides of operand 0 (f32 [2, 2]) were [2, 1] when it was recorded, and are [1, 2] now; ",
                Box::new(|x| or(&x[0].transpose(0, 1)?, &x[0]).abs()),
            ),
            (
                "launch 2 (abs): operand 0 (f32 [2, 2]) is now another intermediate result: one of relu, it was one of exp; ",
                Box::new(|x| {
                    let (y, z) = (x[0].exp()?, x[0].relu()?);
                    or(&z, &y).abs()?.add(&y)?.add(&z)
                }),
            ),
            (
                "launch 1 (abs): operand 0 (f32 [2, 2]) is now a tensor from outside the step; the step made it when it was recorded; ",
                Box::new(|x| {
                    let y = x[0].exp()?;
                    or(&x[0], &y).abs()?.add(&y)
                }),
            ),
        ];
        for (message, closure) in &cases {
            late.set(false);
            let mut step = Step::new(&device, |x| Ok(vec![closure(x)?]));
            step.call(from_ref(&x)).unwrap();
            late.set(true);
            let error = step.check().unwrap_err();
            assert!(matches!(error, Error::RecordingChanged { .. }), "{error}");
            let error = error.to_string();
            assert!(error.starts_with("the recorded step is out of date at "), "{error}");
            assert!(error.contains(message), "no {message:?} in {error}");
            assert!(error.ends_with("or pass it as an input") && !error.contains(['{', '}']), "{error}");
        }
        assert_usable(&device);
    }
}

#[test]
fn a_change_that_comes_late_is_found_by_a_later_call() {
    for device in devices() {
        let scale = Cell::new(1.0);
        let x = vector(&[1.0, 2.0], &device);
        let mut step = Step::new(&device, |x| Ok(vec![x[0].mul_scalar(scale.get())?]));
        for _ in 0..100 {
            step.call(from_ref(&x)).unwrap();
        }
        scale.set(2.0);
        let begin = Instant::now();
        let error = loop {
            if let Err(error) = step.call(from_ref(&x)) {
                break error;
            }
            assert!(
                begin.elapsed() < Duration::from_secs(60),
                "not found after {} checks",
                step.recordings()
            );
        };
        assert!(matches!(error, Error::RecordingChanged { .. }), "{error}");
    }
}

#[test]
fn a_program_is_checked_at_its_second_and_tenth_call_and_then_less_and_less() {
    if common::strict() {
        return; // Every call records.
    }
    for device in devices() {
        let calls = Cell::new(0u64);
        let mut step = Step::new(&device, |x| {
            calls.set(calls.get() + 1);
            Ok(vec![x[0].matmul(&x[0])?.softmax(1)?])
        });
        // Each program separately.
        for size in [2, 3] {
            let x = Tensor::ones([size, size], DType::F32, &device).unwrap();
            let before = calls.get();
            let recordings = [1, 8, 10].map(|n| {
                (0..n).for_each(|_| step.call(from_ref(&x)).map(drop).unwrap());
                calls.get() - before
            });
            assert_eq!(recordings, [2, 3, 4], "after the first, ninth and nineteenth call");
            // At 20, 40 and 80 at most.
            step.repeat(from_ref(&x), 81).unwrap();
            assert!(calls.get() - before <= 7, "{}", calls.get() - before);
        }
    }
}

#[test]
fn a_strict_step_finds_what_changes_and_changes_back() {
    for device in devices() {
        let rate = Cell::new(0.5);
        let weight = vector(&[8.0], &device);
        let options = StepOptions::new().strict(true);
        let mut step = Step::with_options(&device, options, |_| {
            weight.add_scalar_assign(-rate.get())?;
            Ok(vec![])
        });
        for value in [0.5, 0.5, 0.25, 0.125, 0.5] {
            rate.set(value);
            match step.call(&[]).map(drop) {
                Ok(()) => assert_eq!(value, 0.5),
                Err(error) => {
                    assert!(matches!(error, Error::RecordingChanged { launch: 0, op: "add", .. }), "{error}");
                    assert!(error.to_string().contains(&value.to_string()) && value < 0.5, "{error}");
                }
            }
        }
        assert_eq!(weight.to_vec::<f32>().unwrap(), [6.5], "three calls have run");
        assert_eq!(step.recordings(), 2 + 4);
        step.repeat(&[], 70).unwrap();
        assert_eq!(step.recordings(), 2 + 4 + 70);
        step.finish().unwrap();
    }
}

#[test]
fn the_closure_is_called_while_recording_and_never_else() {
    if common::strict() {
        return; // Every call records.
    }
    let device = Device::cpu();
    let x = vector(&[1.0, 2.0], &device);
    let calls = Cell::new(0u64);
    let mut step = Step::new(&device, |x| {
        calls.set(calls.get() + 1);
        Ok(vec![x[0].mul_scalar(2.0)?])
    });
    let begin = Instant::now();
    for _ in 0..2000 {
        step.call(from_ref(&x)).unwrap();
    }
    assert_eq!(calls.get(), step.recordings());
    // Twice at first, at calls 2, 10, 20, 40 and so on to 1280.
    assert!((4..=12).contains(&calls.get()), "{} recordings for 2000 calls", calls.get());
    assert!(step.checking_time() < begin.elapsed() / 2);
}

#[test]
fn a_tensor_that_outlives_the_recording_is_named() {
    for device in devices() {
        let cache: RefCell<Option<Tensor>> = RefCell::default();
        let x = vector(&[1.0, 2.0], &device);
        let mut step = Step::new(&device, |x| {
            let y = x[0].exp()?;
            cache.borrow_mut().get_or_insert(y.clone());
            Ok(vec![y.sum(())?])
        });
        let error = failure(&mut step, from_ref(&x));
        assert!(matches!(&error, Error::Escaped { op: "exp", tensor, .. } if tensor == "f32 [2]"), "{error}");
        // An escaped tensor has no memory: every use of it is an error that says so.
        let escaped = cache.borrow().clone().unwrap();
        for error in [
            escaped.to_vec::<f32>().unwrap_err(),
            escaped.write_from(&[1.0f32, 2.0]).unwrap_err(),
            escaped.relu().unwrap_err(),
            x.add_into(&x, &escaped).unwrap_err(),
        ] {
            assert!(matches!(error, Error::Escaped { op: "exp", .. }), "{error}");
        }
        let error = failure(&mut Step::new(&device, |_| Ok(vec![escaped.relu()?])), &[]);
        assert!(matches!(error, Error::Escaped { op: "exp", .. }), "{error}");
        let error = failure(&mut Step::new(&device, |_| Ok(vec![escaped.clone()])), &[]);
        assert!(matches!(error, Error::Escaped { op: "exp", .. }), "{error}");
        assert_usable(&device);
        // As an output it is allowed.
        cache.take();
        let mut step = Step::new(&device, |x| Ok(vec![x[0].exp()?]));
        step.call(&[x]).unwrap();
    }
}

#[test]
fn a_gradient_made_lazily_is_an_escape_and_one_eager_run_cures_it() {
    for device in devices() {
        let w = common::leaf(&[1.0, 2.0], &device);
        let train = |x: &Tensor| -> Result<Tensor> {
            let loss = w.mul(x)?.sum(())?;
            loss.backward()?;
            Ok(loss)
        };
        let x = vector(&[3.0, 5.0], &device);
        let mut step = Step::new(&device, |x| Ok(vec![train(&x[0])?]));
        let error = failure(&mut step, from_ref(&x));
        assert!(matches!(error, Error::Escaped { .. }), "{error}");
        assert!(error.to_string().contains("gradients before the step"), "{error}");
        train(&x).unwrap();
        assert_eq!(w.grad().unwrap().to_vec::<f32>().unwrap(), [3.0, 5.0]);
        step.call(&[x]).unwrap();
        assert_eq!(w.grad().unwrap().to_vec::<f32>().unwrap(), [6.0, 10.0]);
        step.finish().unwrap();
    }
}

#[test]
fn a_tape_that_was_not_walked_back_is_no_escape() {
    for device in devices() {
        let w = common::leaf(&[1.0, 2.0], &device);
        let mut step = Step::new(&device, |x| Ok(vec![w.mul(&x[0])?.exp()?.square()?]));
        let y = step.call(&[vector(&[0.0, 0.0], &device)]).unwrap().to_vec::<f32>(0).unwrap();
        assert_eq!(y, [1.0, 1.0]);
    }
}

#[test]
fn a_panic_in_the_closure_ends_the_recording() {
    for device in devices() {
        let fine = Cell::new(false);
        let x = vector(&[1.0, 2.0], &device);
        let mut step = Step::new(&device, |x| {
            let y = x[0].exp()?;
            assert!(fine.get(), "on purpose");
            Ok(vec![y])
        });
        let call = AssertUnwindSafe(|| step.call(from_ref(&x)).map(|_| ()));
        assert!(catch_unwind(call).is_err());
        assert_usable(&device);
        fine.set(true);
        assert_eq!(step.call(&[x]).unwrap().to_vec::<f32>(0).unwrap().len(), 2);
    }
}

#[test]
fn an_error_of_the_closure_comes_through() {
    for device in devices() {
        let mut step = Step::new(&device, |_| Err("no more data".into()));
        let error = failure(&mut step, &[]);
        assert_eq!(error.to_string(), "the closure of a step failed: no more data");
        let mut step = Step::new(&device, |x| Ok(vec![x[0].add(&x[1])?]));
        let error = failure(&mut step, &[vector(&[1.0, 2.0], &device), vector(&[1.0, 2.0, 3.0], &device)]);
        assert!(matches!(error, Error::ShapeMismatch { .. }), "{error}");
        assert_usable(&device);
    }
}

#[test]
fn overwritten_saved_values_are_found_in_a_recording_and_after_a_replay() {
    for device in devices() {
        let w = common::leaf(&[1.0, 2.0], &device);
        w.set_grad(&w.detach().zeros_like().unwrap()).unwrap();
        let mut step = Step::new(&device, |x| {
            let y = w.mul(&x[0])?.exp()?;
            let loss = y.sum(())?;
            no_grad(|| y.fill(0.0))?;
            loss.backward()?;
            Ok(vec![])
        });
        let x = vector(&[1.0, 1.0], &device);
        let error = failure(&mut step, from_ref(&x));
        assert!(matches!(error, Error::SavedValueOverwritten { op: "exp", by: "fill", .. }), "{error}");

        // The eager tape sees the writes of a replay, but not operations that are only recorded.
        let v = vector(&[1.0, 2.0], &device);
        let loss = w.mul(&v).unwrap().sum(()).unwrap();
        let mut step = Step::new(&device, |x| {
            v.copy_from(&x[0])?;
            Ok(vec![])
        });
        step.call(from_ref(&x)).unwrap();
        let error = loss.backward().unwrap_err();
        assert!(matches!(error, Error::SavedValueOverwritten { op: "mul", by: "copy_from", .. }), "{error}");
        let loss = w.mul(&v).unwrap().sum(()).unwrap();
        step.check().unwrap();
        loss.backward().unwrap();
    }
}
