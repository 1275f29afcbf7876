//! What a recorded step shares with what is around it: parameters, generators, inputs and outputs.

mod common;

use std::cell::{Cell, RefCell};
use std::slice::from_ref;

use common::{devices, vector};
use refrain::{DType, Device, Error, Fallback, Profile, Simulator, Step, StepOptions, Tensor, no_grad};

#[test]
fn values_written_between_replays_are_used_and_two_steps_share_parameters() {
    for device in devices() {
        let w = vector(&[1.0, 2.0], &device);
        let mut train = Step::new(&device, |x| {
            w.add_into(&x[0], &w)?;
            Ok(vec![])
        });
        let mut evaluate = Step::new(&device, |x| Ok(vec![w.mul(&x[0])?.sum(())?, w.clone()]));
        let one = vector(&[1.0, 1.0], &device);
        let mut value = |one: &Tensor| evaluate.call(from_ref(one)).unwrap().to_scalar::<f32>(0).unwrap();
        assert_eq!(value(&one), 3.0);
        train.call(from_ref(&one)).unwrap();
        assert_eq!(value(&one), 5.0);
        w.write_from(&[10.0f32, 20.0]).unwrap();
        assert_eq!(value(&one), 30.0);
        train.call(from_ref(&one)).unwrap();
        assert_eq!(w.to_vec::<f32>().unwrap(), [11.0, 21.0]);
        assert_eq!(evaluate.call(&[one]).unwrap().to_vec::<f32>(1).unwrap(), [11.0, 21.0]);
        train.finish().unwrap();
        evaluate.finish().unwrap();
    }
}

#[test]
fn a_step_keeps_alive_what_it_uses() {
    for device in devices() {
        let x = vector(&[1.0, 2.0], &device);
        let w = vector(&[3.0, 4.0], &device);
        let mut step = {
            let w = w.clone();
            Step::new(&device, move |x| Ok(vec![w.mul(&x[0])?]))
        };
        drop(w);
        let mut last = Vec::new();
        for _ in 0..3 {
            last = step.call(from_ref(&x)).unwrap().to_vec::<f32>(0).unwrap();
            // Takes up memory that was given back.
            let _other = vector(&[7.0, 7.0], &device);
        }
        assert_eq!(last, [3.0, 8.0]);
        let copy = step.call(&[x]).unwrap().copy(0).unwrap();
        drop(step);
        assert_eq!(copy.to_vec::<f32>().unwrap(), [3.0, 8.0]);
    }
}

#[test]
fn outputs_are_copied_out_and_inputs_copied_in() {
    for device in devices() {
        let x = vector(&[1.0, 2.0, 3.0], &device);
        let mut step = Step::new(&device, |x| Ok(vec![x[0].mul_scalar(2.0)?, x[0].narrow(0, 1, 2)?]));
        let first = step.call(from_ref(&x)).unwrap().copy(0).unwrap();
        x.fill(5.0).unwrap();
        let outputs = step.call(from_ref(&x)).unwrap();
        assert_eq!((outputs.len(), outputs.shape(1).unwrap().dims()), (2, &[2][..]));
        assert_eq!(outputs.dtype(0).unwrap(), DType::F32);
        assert_eq!(outputs.to_vec::<f32>(1).unwrap(), [5.0, 5.0]);
        let mut values = [0.0f32; 3];
        outputs.read_into(0, &mut values).unwrap();
        assert_eq!(values, [10.0; 3]);
        let into = x.zeros_like().unwrap();
        outputs.copy_into(0, &into).unwrap();
        outputs.to_device(0, &device).unwrap().fill(0.0).unwrap();
        assert_eq!(outputs.to_vec::<f32>(0).unwrap(), [10.0; 3]);
        let error = outputs.to_vec::<f32>(2).unwrap_err().to_string();
        assert!(error.contains("no output 2; the closure returned 2"), "{error}");
        assert_eq!(first.to_vec::<f32>().unwrap(), [2.0, 4.0, 6.0]);
        assert_eq!(into.to_vec::<f32>().unwrap(), [10.0; 3]);

        let mut step = Step::new(&device, |x| {
            x[0].fill(0.0)?;
            Ok(vec![])
        });
        let error = step.call(from_ref(&x)).map(|_| ()).unwrap_err();
        assert!(matches!(error, Error::NotRecordable { op: "fill", .. }), "{error}");
        assert_eq!(x.to_vec::<f32>().unwrap(), [5.0; 3]);
    }
}

#[test]
fn a_copy_of_an_input_that_outlives_a_recording_is_an_escape() {
    for device in devices() {
        let kept: RefCell<Vec<Tensor>> = RefCell::default();
        let keeps = Cell::new(true);
        let [x, y] = [[1.0, 2.0], [5.0, 6.0]].map(|v| vector(&v, &device));
        for keep in [|x: &Tensor| x.clone(), |x: &Tensor| x.narrow(0, 1, 1).unwrap()] {
            let mut step = Step::new(&device, |x| {
                if keeps.get() {
                    kept.borrow_mut().push(keep(&x[1]));
                }
                Ok(vec![x[1].clone(), x[0].add(&x[1])?])
            });
            let escapes = |error: Error| {
                assert!(matches!(&error, Error::Escaped { tensor, .. } if tensor == "f32 [2]"), "{error}");
                let text = error.to_string();
                assert!(text.contains("input 1") && text.contains("still reachable"), "{text}");
                for kept in kept.borrow_mut().drain(..) {
                    let uses = [kept.to_vec::<f32>().map(drop), kept.fill(7.0), kept.exp().map(drop)];
                    assert!(uses.iter().all(|e| matches!(e, Err(Error::Escaped { .. }))), "{uses:?}");
                }
            };
            // At the first recording ...
            keeps.set(true);
            escapes(step.call(&[x.clone(), y.clone()]).map(drop).unwrap_err());
            // ... and at any later one.
            keeps.set(false);
            let outputs = step.call(&[x.clone(), y.clone()]).unwrap();
            assert_eq!(outputs.to_vec::<f32>(0).unwrap(), [5.0, 6.0]);
            assert_eq!(outputs.to_vec::<f32>(1).unwrap(), [6.0, 8.0]);
            keeps.set(true);
            escapes(step.check().unwrap_err());
            keeps.set(false);
            step.finish().unwrap();
        }
    }
}

#[test]
fn without_a_graph_the_closure_gets_what_was_passed_and_outputs_are_copies_of_it() {
    let device = Simulator::new(Profile::Discrete).invalidate_capture_at(1).device();
    let options = StepOptions::new().fallback(Fallback::Eager);
    let x = vector(&[1.0], &device);
    let mut step = Step::with_options(&device, options, |x| Ok(vec![x[0].clone(), x[0].mul_scalar(2.0)?]));
    let outputs = step.call(from_ref(&x)).unwrap();
    x.fill(9.0).unwrap();
    assert_eq!(outputs.to_vec::<f32>(0).unwrap(), [1.0]);
    assert!(step.refusal().is_some());
    // As eager code: a write to a tensor from outside is seen in the input that it is.
    let device = Simulator::new(Profile::Discrete).invalidate_capture_at(1).device();
    let w = vector(&[1.0], &device);
    let mut step = Step::with_options(&device, options, |x| {
        w.add_scalar_assign(1.0)?;
        Ok(vec![x[0].mul_scalar(10.0)?])
    });
    assert_eq!(step.call(from_ref(&w)).unwrap().to_scalar::<f32>(0).unwrap(), 20.0);
}

#[test]
fn an_input_whose_memory_the_closure_writes_is_refused_at_every_call() {
    for device in devices() {
        let flat = vector(&[1.0, 2.0, 3.0, 4.0], &device);
        let w = flat.narrow(0, 0, 2).unwrap();
        let mut step = Step::new(&device, |x| {
            w.add_scalar_assign(1.0)?;
            Ok(vec![x[0].mul_scalar(10.0)?])
        });
        let refused = |step: &mut Step<'_>| {
            for input in [w.clone(), flat.narrow(0, 1, 2).unwrap(), w.detach()] {
                let results = [
                    step.call(from_ref(&input)).map(drop),
                    step.repeat(from_ref(&input), 3).map(drop),
                    step.profile(from_ref(&input), 1).map(drop),
                ];
                for error in results.map(|r| r.unwrap_err()) {
                    assert!(matches!(error, Error::Aliased { op: "step", .. }), "{error}");
                    let text = error.to_string();
                    assert!(["input 0", "add", "copy()"].iter().all(|part| text.contains(part)), "{text}");
                }
            }
        };
        refused(&mut step);
        assert_eq!(flat.to_vec::<f32>().unwrap(), [1.0, 2.0, 3.0, 4.0]);
        // Beside it, or a copy.
        let mut value = |x: &Tensor| step.call(from_ref(x)).unwrap().to_vec::<f32>(0).unwrap();
        assert_eq!(value(&flat.narrow(0, 2, 2).unwrap()), [30.0, 40.0]);
        assert_eq!(value(&w.copy().unwrap()), [20.0, 30.0]);
        refused(&mut step);
        assert_eq!(flat.to_vec::<f32>().unwrap(), [3.0, 4.0, 3.0, 4.0]);
        step.finish().unwrap();
    }
}

#[test]
fn programs_are_kept_by_shape_and_grad_mode_and_the_oldest_goes() {
    for device in devices() {
        let w = common::leaf(&[1.0], &device);
        let options = StepOptions::new().keep(2);
        let mut step = Step::with_options(&device, options, |x| Ok(vec![w.mul(&x[0])?]));
        let x = |n: usize| vector(&vec![1.0; n], &device);
        for n in [1, 2, 1, 2, 1] {
            step.call(&[x(n)]).unwrap();
        }
        assert_eq!((step.programs(), step.evictions()), (2, 0));
        step.call(&[x(3)]).unwrap();
        assert_eq!((step.programs(), step.evictions()), (2, 1));
        step.call(&[x(1)]).unwrap();
        assert_eq!(step.evictions(), 1, "the one used last stays");
        no_grad(|| step.call(&[x(1)]).map(|_| ())).unwrap();
        assert_eq!(step.evictions(), 2, "without gradients it is another program");
        step.call(&[x(1).to_dtype(DType::F32).unwrap()]).unwrap();
        assert_eq!(step.evictions(), 2);
    }
}

#[test]
fn a_program_can_be_looked_at() {
    let device = Device::cpu();
    let mut step = Step::new(&device, |x| {
        let y = x[0].softmax(0)?;
        let _unused = y.relu()?.square()?;
        Ok(vec![y.mul(&x[0])?.logsumexp(0)?])
    });
    assert!(step.program().is_none());
    step.call(&[vector(&[1.0; 1000], &device)]).unwrap();
    let program = step.program().unwrap();
    assert_eq!((program.launch_count(), program.dead_launches()), (3, 2), "{program}");
    assert_eq!(program.longest_chain(), 3);
    assert_eq!(program.temporaries(), 3);
    let table = program.to_string();
    assert!(table.contains("softmax") && table.contains("f32 [1000]") && !table.contains("relu"), "{table}");
    let dot = program.to_dot();
    assert!(dot.starts_with("digraph") && dot.contains("n0 -> n1;") && dot.contains("n1 -> n2;"), "{dot}");
    let svg = program.memory_svg();
    assert_eq!(svg.matches("<title>").count(), 3, "{svg}");
}

#[test]
fn a_step_repeats_with_a_cursor_on_the_device() {
    for device in devices() {
        let series = Tensor::arange(0.0, 300.0, 1.0, DType::F32, &device).unwrap();
        let cursor = Tensor::zeros([1], DType::I64, &device).unwrap();
        let sum = Tensor::zeros([1], DType::F32, &device).unwrap();
        let mut step = Step::new(&device, |_| {
            sum.add_assign(&series.index_select(0, &cursor)?)?;
            cursor.add_scalar_assign(1.0)?;
            Ok(vec![sum.copy()?])
        });
        assert_eq!(step.repeat(&[], 200).unwrap().to_scalar::<f32>(0).unwrap(), 19900.0);
        assert_eq!(cursor.to_vec::<i64>().unwrap(), [200]);
        assert!(step.repeat(&[], 0).is_err());
        step.finish().unwrap();
    }
}
