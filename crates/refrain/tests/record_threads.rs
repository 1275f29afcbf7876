//! A recording belongs to one thread: work that the closure gives to other threads is detected, and other threads
//! continue with their own work.

mod common;

use std::slice::from_ref;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;

use common::{assert_usable, devices, failure, turn, vector};
use rayon::prelude::*;
use refrain::{DType, Error, Result, Step, Tensor, on_one_thread, unrelated_to_recordings};

/// Runs `f` on a new thread.
fn on_a_new_thread<R: Send>(f: impl FnOnce() -> R + Send) -> R {
    std::thread::scope(|s| {
        std::thread::Builder::new().name("helper".into()).spawn_scoped(s, f).unwrap().join().unwrap()
    })
}

/// Sets a flag when it is dropped, also during a panic.
struct AtEnd<'a>(&'a AtomicBool);

impl Drop for AtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

type Work<'a> = Box<dyn Fn() -> Result<()> + Sync + 'a>;

#[test]
fn work_that_the_closure_hands_to_a_new_thread_or_a_pool_is_refused() {
    let _turn = turn();
    for device in devices() {
        let w = vector(&[1.0, 2.0], &device);
        let add = || w.add_scalar_assign(1.0);
        let step_of_a_thread = || {
            let mut step = Step::new(&device, |_| {
                add()?;
                Ok(vec![])
            });
            step.call(&[]).map(drop)
        };
        let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap();
        let cases: Vec<(&str, &str, Work<'_>)> = vec![
            ("add", "\"helper\"", Box::new(|| on_a_new_thread(add))),
            ("step", "\"helper\"", Box::new(|| on_a_new_thread(step_of_a_thread))),
            ("to_vec", "\"helper\"", Box::new(|| on_a_new_thread(|| w.to_vec::<f32>().map(drop)))),
            ("write_from", "\"helper\"", Box::new(|| on_a_new_thread(|| w.write_from(&[5.0f32, 5.0])))),
            ("add", "worker of a thread pool", Box::new(|| (0..4).into_par_iter().try_for_each(|_| add()))),
            ("add", "worker of a thread pool", Box::new(|| pool.install(add))),
            ("exp", "worker of a thread pool", Box::new(|| rayon::join(|| w.exp(), || w.exp()).0.map(drop))),
        ];
        for (op, thread, work) in &cases {
            for listens in [true, false] {
                let mut step = Step::new(&device, |x| {
                    let done = work();
                    if listens {
                        done?;
                    }
                    Ok(vec![x[0].exp()?])
                });
                let error = failure(&mut step, &[vector(&[1.0], &device)]);
                assert!(
                    matches!(&error, Error::NotRecordable { op: refused, .. } if refused == op),
                    "{op}: {error}"
                );
                for part in [thread, "unrelated_to_recordings"] {
                    assert!(error.to_string().contains(part), "{op}: {error}");
                }
                assert_eq!(w.to_vec::<f32>().unwrap(), [1.0, 2.0], "{op} has run");
            }
        }
        assert_usable(&device);
    }
}

#[test]
fn a_tensor_of_the_recording_can_not_be_used_on_another_thread() {
    let _turn = turn();
    for device in devices() {
        for listens in [true, false] {
            let mut step = Step::new(&device, |x| {
                let y = x[0].exp()?;
                let done = on_a_new_thread(|| y.relu().map(drop));
                if listens {
                    done?;
                }
                Ok(vec![y])
            });
            let error = failure(&mut step, &[vector(&[1.0, 2.0], &device)]);
            assert!(matches!(error, Error::Escaped { op: "exp", .. }), "{error}");
        }
    }
}

#[test]
fn a_thread_that_was_at_work_goes_on_unless_it_touches_what_the_step_touches() {
    let _turn = turn();
    for device in devices() {
        let [read, written, returned, own] = [(); 4].map(|()| vector(&[1.0, 2.0], &device));
        std::thread::scope(|s| {
            let (ask, asked) = mpsc::sync_channel::<Box<dyn FnOnce() -> Result<()> + Send>>(0);
            let (answer, answered) = mpsc::sync_channel(0);
            let helper = std::thread::Builder::new().name("helper".into());
            helper
                .spawn_scoped(s, move || asked.iter().for_each(|work| answer.send(work()).unwrap()))
                .unwrap();
            let have = |work: Box<dyn FnOnce() -> Result<()> + Send>| {
                ask.send(work).unwrap();
                answered.recv().unwrap()
            };
            let first = own.clone();
            have(Box::new(move || first.fill(0.0))).unwrap();

            let call = |work: fn(&Tensor) -> Result<()>, of: &Tensor| {
                let mut step = Step::new(&device, |x| {
                    let of = of.clone();
                    have(Box::new(move || work(&of)))?;
                    written.add_into(&x[0].mul(&read)?, &written)?;
                    Ok(vec![returned.clone()])
                });
                step.call(&[vector(&[1.0, 1.0], &device)]).map(drop)
            };
            let look = |t: &Tensor| t.to_vec::<f32>().map(drop);
            let change = |t: &Tensor| t.add_scalar_assign(1.0);
            for (work, of) in
                [(change as fn(&Tensor) -> _, &own), (look, &own), (look, &read), (look, &returned)]
            {
                call(work, of).unwrap();
            }
            let before = written.to_vec::<f32>().unwrap();
            for (work, of, parts) in [
                (change as fn(&Tensor) -> _, &read, ["it writes", "mul of the step reads"]),
                (change, &written, ["it writes", "add of the step"]),
                (look, &written, ["it reads", "add of the step writes"]),
                (change, &returned, ["it writes", "an output of the step reads"]),
            ] {
                let error = call(work, of).unwrap_err();
                assert!(matches!(error, Error::NotRecordable { op: "add" | "to_vec", .. }), "{error}");
                for part in parts.iter().chain(&["\"helper\"", "unrelated_to_recordings"]) {
                    assert!(error.to_string().contains(part), "{part}: {error}");
                }
            }
            let after = written.to_vec::<f32>().unwrap();
            assert_eq!(after, [before[0] + 1.0, before[1] + 1.0], "no step has run, the helper has, once");
            drop(ask);
        });
        assert_usable(&device);
    }
}

#[test]
fn work_that_is_said_to_be_unrelated_goes_on() {
    let _turn = turn();
    for device in devices() {
        let w = vector(&[1.0, 2.0], &device);
        let (read, count) = (|| w.to_vec::<f32>().map(drop), w.zeros_like().unwrap());
        let mut step = Step::new(&device, |_| {
            on_a_new_thread(|| unrelated_to_recordings(read))?;
            rayon::join(
                || unrelated_to_recordings(read),
                || unrelated_to_recordings(|| count.add_scalar_assign(1.0)),
            )
            .1?;
            // On the recording thread it changes nothing.
            unrelated_to_recordings(|| w.add_scalar_assign(1.0))?;
            Ok(vec![])
        });
        for _ in 0..3 {
            step.call(&[]).unwrap();
        }
        assert_eq!(w.to_vec::<f32>().unwrap(), [4.0, 5.0]);
        assert_eq!(count.to_vec::<f32>().unwrap(), [step.recordings() as f32; 2]);
        // It ends with the closure that it was given, also during a panic.
        drop(step);
        let mut step = Step::new(&device, |_| {
            on_a_new_thread(|| {
                let _ = std::panic::catch_unwind(|| unrelated_to_recordings(|| panic!("on purpose")));
                read()
            })?;
            Ok(vec![])
        });
        assert!(matches!(failure(&mut step, &[]), Error::NotRecordable { op: "to_vec", .. }));
    }
}

#[test]
fn threads_with_tensors_of_their_own_go_on() {
    let _turn = turn();
    for device in devices() {
        let x = vector(&[1.0, 2.0], &device);
        // Tensors created by a new thread or by a task of a pool cannot reach a replay.
        let mut step = Step::new(&device, |x| {
            on_a_new_thread(|| assert_usable(&device));
            (0..4).into_par_iter().for_each(|_| {
                let ones = Tensor::ones([2], DType::F32, &device).unwrap();
                assert_eq!(ones.exp().unwrap().log().unwrap().to_vec::<f32>().unwrap().len(), 2);
            });
            Ok(vec![x[0].exp()?])
        });
        // Eager work of a thread that runs before and during recordings and replays.
        let (stop, (begun, begins)) = (AtomicBool::new(false), mpsc::channel());
        std::thread::scope(|s| {
            s.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    assert_eq!(x.sum(()).unwrap().to_scalar::<f32>().unwrap(), 3.0);
                    let _ = begun.send(());
                }
            });
            let _stop = AtEnd(&stop);
            begins.recv().unwrap();
            (0..100).for_each(|_| step.call(from_ref(&x)).map(drop).unwrap());
        });
    }
}

#[test]
fn a_step_can_not_be_called_in_a_worker_of_a_thread_pool() {
    let _turn = turn();
    for device in devices() {
        let x = vector(&[1.0, 2.0], &device);
        let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
        let (device, x) = (&device, &x);
        let errors = pool.install(move || {
            let mut step = Step::new(device, |x| Ok(vec![x[0].exp()?]));
            [
                step.call(from_ref(x)).map(|_| ()).unwrap_err(),
                step.check().unwrap_err(),
                step.finish().unwrap_err(),
            ]
        });
        for error in errors {
            assert!(matches!(error, Error::NotRecordable { .. }), "{error}");
            assert!(error.to_string().contains("worker of a thread pool"), "{error}");
        }
    }
}

#[test]
fn a_step_that_may_move_is_replayed_and_checked_on_other_threads_than_it_was_recorded_on() {
    let _turn = turn();
    for device in devices() {
        let values =
            |seed: usize| -> Vec<f32> { (0..96 * 96).map(|i| (i * seed % 101) as f32 / 101.0).collect() };
        let matrix = |seed| Tensor::from_slice(&values(seed), [96, 96], &device).unwrap();
        let (w, power) = (matrix(7), AtomicUsize::new(1));
        let compute = |x: &Tensor| -> Result<Tensor> {
            let y = x.matmul(&w)?.softmax(1)?;
            if power.load(Ordering::Relaxed) == 1 { Ok(y) } else { y.square() }
        };
        let mut step = Step::new_send(&device, |x| Ok(vec![compute(&x[0])?]));
        for call in 1..13 {
            let x = matrix(call);
            let expected = compute(&x).unwrap().to_vec::<f32>().unwrap();
            let run = || step.call(&[x])?.to_vec::<f32>(0);
            let found = on_a_new_thread(|| if call % 2 == 0 { on_one_thread(run) } else { run() });
            assert_eq!(found.unwrap(), expected, "call {call} on {device}");
        }
        power.store(2, Ordering::Relaxed);
        let error = on_a_new_thread(|| step.check()).unwrap_err();
        assert!(matches!(error, Error::RecordingChanged { .. }), "{error}");
        power.store(1, Ordering::Relaxed);
        on_a_new_thread(|| step.finish()).unwrap();
    }
}
