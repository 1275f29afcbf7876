//! Threads in many orders: the locks of the door, the transfer of what a recording made, and other threads' work
//! during the recording of a step. It is compiled and run only with `--cfg shuttle` (CONTRIBUTING.md has the
//! command). Then the engine's locks and atomics are shuttle's, which may switch threads before each of them.
#![cfg(shuttle)]

use std::collections::HashSet;
use std::sync::{Arc, PoisonError};

use refrain::{
    DType, Device, Error, Generator, Profile, Result, Simulator, Step, Tensor, unrelated_to_recordings,
};
use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::sync::{Barrier, Mutex, mpsc};
use shuttle::{Config, Runner, thread};

/// The number of orders of each kind that a test tries: `REFRAIN_SCHEDULES`, or a few hundred.
fn orders() -> usize {
    std::env::var("REFRAIN_SCHEDULES").ok().and_then(|n| n.parse().ok()).unwrap_or(150)
}

/// Runs a test in many orders of its threads, on the CPU and on simulated GPUs.
fn check(test: fn(&Device)) {
    fn run(scheduler: impl Scheduler + 'static, test: fn(&Device)) {
        let mut config = Config::new();
        config.stack_size = 1 << 20;
        config.silence_warnings = true;
        Runner::new(scheduler, config).run(move || {
            test(&Simulator::new(Profile::Discrete).device());
            test(&Device::cpu());
        });
    }
    // All tests share one set of the engine's statics.
    static ONE_AT_A_TIME: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _mine = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    run(RandomScheduler::new(orders()), test);
    run(PctScheduler::new(4, orders()), test);
}

fn tensor(value: f32, device: &Device) -> Tensor {
    Tensor::from_slice(&[value], [1], device).unwrap()
}

fn value(t: &Tensor) -> f32 {
    t.to_vec::<f32>().unwrap()[0]
}

type Work = Box<dyn FnOnce() + Send>;

/// Runs several pieces of work in parallel.
fn side_by_side<const N: usize>(work: [Work; N]) {
    work.map(thread::spawn).into_iter().for_each(|t| t.join().unwrap());
}

/// Calls a step once that adds 1 to `w`; returns whether it did.
fn add_one_by_step(w: &Tensor) -> bool {
    let mut step = Step::new(w.device(), |_| {
        w.add_scalar_assign(1.0)?;
        Ok(vec![])
    });
    done(step.call(&[]))
}

/// Returns whether it succeeded; the only allowed error is one of a recording.
#[track_caller]
fn done<T>(result: Result<T>) -> bool {
    match result {
        Ok(_) => true,
        Err(Error::NotRecordable { .. }) => false,
        Err(e) => panic!("{e}"),
    }
}

#[test]
fn launches_on_the_same_tensors_come_one_after_the_other_and_none_waits_for_ever() {
    check(|device| {
        let all = [1.0, 10.0, 100.0].map(|v| tensor(v, device));
        let work = [0, 1, 2].map(|i| {
            let all = all.clone();
            Box::new(move || all[i].add_assign(&all[(i + 1) % 3]).unwrap()) as Work
        });
        side_by_side(work);
        let orders = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
        let expected = orders.map(|order| {
            let mut v = [1.0f32, 10.0, 100.0];
            order.iter().for_each(|&i: &usize| v[i] += v[(i + 1) % 3]);
            v
        });
        let got = all.each_ref().map(value);
        assert!(expected.contains(&got), "{got:?}");
    });
}

#[test]
fn replays_on_the_same_tensors_come_one_after_the_other_and_none_waits_for_ever() {
    check(|device| {
        let both = [tensor(0.0, device), tensor(0.0, device)];
        let replays = [[0, 1], [1, 0]].map(|order| {
            let both = both.clone();
            Box::new(move || {
                let mut step = Step::new(both[0].device(), |_| {
                    order.iter().try_for_each(|&i| both[i].add_scalar_assign(1.0))?;
                    Ok(vec![])
                });
                // A recording sees no launch of the other thread.
                unrelated_to_recordings(|| done(step.call(&[]).and_then(|_| Ok(()))));
            }) as Work
        });
        let look = {
            let both = both.clone();
            Box::new(move || {
                // One launch, so it sees both in the state between two replays.
                let both =
                    unrelated_to_recordings(|| Tensor::concat(&[&both[1], &both[0]], 0)?.to_vec::<f32>());
                let both = both.unwrap();
                assert_eq!(both[0], both[1]);
            }) as Work
        };
        let [first, second] = replays;
        side_by_side([first, second, look]);
        assert_eq!(both.each_ref().map(value), [2.0; 2]);
    });
}

#[test]
fn what_a_recording_made_holds_nothing_for_another_thread_at_any_time() {
    check(|device| {
        let x = tensor(2.0, device);
        let passed: Arc<Mutex<Option<Tensor>>> = Arc::default();
        let lets_go = Arc::new(Mutex::new(false));
        let records = {
            let (x, passed, lets_go) = (x.clone(), passed.clone(), lets_go.clone());
            Box::new(move || {
                let mut step = Step::new(x.device(), |_| {
                    let y = x.add_scalar(1.0)?;
                    *passed.lock().unwrap() = Some(y.clone());
                    Ok(vec![y.mul(&x)?])
                });
                match step.call(&[]) {
                    Ok(outputs) => {
                        assert_eq!(outputs.to_vec::<f32>(0).unwrap(), [6.0]);
                        assert!(*lets_go.lock().unwrap(), "the other thread has it");
                    }
                    Err(e) => assert!(matches!(e, Error::Escaped { op: "add", .. }), "{e}"),
                }
            }) as Work
        };
        let uses = {
            let passed = passed.clone();
            Box::new(move || {
                // The closure is recorded twice, if the first recording does not detect it.
                for _ in 0..2 {
                    *lets_go.lock().unwrap() = false;
                    let Some(y) = passed.lock().unwrap().take() else { continue };
                    for error in [y.exp().err(), y.to_vec::<f32>().err(), y.fill(1.0).err()] {
                        assert!(matches!(error, Some(Error::Escaped { op: "add", .. })), "{error:?}");
                    }
                    *lets_go.lock().unwrap() = true;
                }
            }) as Work
        };
        side_by_side([records, uses]);
        assert_eq!(value(&x.exp().unwrap()), 2f32.exp());
    });
}

#[test]
fn a_gradient_that_a_recording_made_is_none_once_it_is_over() {
    check(|device| {
        let w = tensor(3.0, device);
        w.set_requires_grad(true).unwrap();
        let records = {
            let w = w.clone();
            Box::new(move || {
                let mut step = Step::new(w.device(), |_| {
                    w.square()?.sum(())?.backward()?;
                    Ok(vec![])
                });
                let error = step.call(&[]).map(drop).unwrap_err();
                assert!(matches!(error, Error::Escaped { .. }), "{error}");
            }) as Work
        };
        let looks = {
            let w = w.clone();
            Box::new(move || {
                if let Some(gradient) = w.grad() {
                    let error = gradient.to_vec::<f32>().unwrap_err();
                    assert!(matches!(error, Error::Escaped { .. }), "{error}");
                }
            }) as Work
        };
        side_by_side([records, looks]);
        assert!(w.grad().is_none());
        w.square().unwrap().sum(()).unwrap().backward().unwrap();
        assert_eq!(value(&w.grad().unwrap()), 6.0);
    });
}

#[test]
fn a_step_and_a_thread_at_work_do_both_or_the_step_does_nothing() {
    check(|device| {
        let w = tensor(0.0, device);
        let (both_at_work, added) = (Arc::new(Barrier::new(2)), Arc::new(Mutex::new(0.0)));
        let step = {
            let (w, both_at_work, added) = (w.clone(), both_at_work.clone(), added.clone());
            Box::new(move || {
                both_at_work.wait();
                if add_one_by_step(&w) {
                    *added.lock().unwrap() += 1.0;
                }
            }) as Work
        };
        let works = {
            let (w, added) = (w.clone(), added.clone());
            Box::new(move || {
                // It used the engine before the recording began, and continues.
                assert_eq!(value(&w), 0.0);
                both_at_work.wait();
                w.add_scalar_assign(10.0).unwrap();
                *added.lock().unwrap() += 10.0;
            }) as Work
        };
        side_by_side([step, works]);
        assert_eq!(value(&w), *added.lock().unwrap());
    });
}

#[test]
fn a_step_and_a_new_thread_do_what_they_say_they_did() {
    check(|device| {
        let w = tensor(0.0, device);
        let added = Arc::new(Mutex::new(0.0));
        let step = {
            let (w, added) = (w.clone(), added.clone());
            Box::new(move || {
                if add_one_by_step(&w) {
                    *added.lock().unwrap() += 1.0;
                }
            }) as Work
        };
        let new = {
            let (w, added) = (w.clone(), added.clone());
            Box::new(move || {
                if done(w.add_scalar_assign(10.0)) {
                    *added.lock().unwrap() += 10.0;
                }
            }) as Work
        };
        side_by_side([step, new]);
        assert_eq!(value(&w), *added.lock().unwrap());
        // No recording remains; it would refuse a new thread.
        thread::spawn(move || w.add_scalar_assign(1.0)).join().unwrap().unwrap();
    });
}

#[test]
fn work_that_a_closure_hands_to_a_new_thread_is_never_lost_in_silence() {
    check(|device| {
        let w = tensor(0.0, device);
        let mut step = Step::new(device, |_| {
            let other = w.clone();
            let handed = thread::spawn(move || other.add_scalar_assign(1.0));
            w.neg()?;
            handed.join().unwrap()?;
            Ok(vec![])
        });
        assert!(matches!(step.call(&[]), Err(Error::NotRecordable { op: "add", .. })));
        assert_eq!(value(&w), 0.0);
    });
}

#[test]
fn work_that_a_closure_hands_to_a_thread_at_work_is_never_lost_in_silence() {
    check(|device| {
        let w = tensor(0.0, device);
        let (hand, handed) = mpsc::channel::<()>();
        let (tell, told) = mpsc::channel::<()>();
        let worker = {
            let w = w.clone();
            thread::spawn(move || {
                assert_eq!(value(&w), 0.0);
                tell.send(()).unwrap();
                while handed.recv().is_ok() {
                    w.add_scalar_assign(1.0).unwrap();
                    tell.send(()).unwrap();
                }
            })
        };
        told.recv().unwrap();
        let mut step = Step::new(device, |_| {
            hand.send(())?;
            let twice = w.mul_scalar(2.0)?;
            told.recv()?;
            Ok(vec![twice])
        });
        assert!(matches!(step.call(&[]), Err(Error::NotRecordable { op: "add", .. })));
        drop(step);
        drop(hand);
        worker.join().unwrap();
    });
}

#[test]
fn no_two_draws_of_a_generator_are_the_same() {
    check(|device| {
        let draw = |generator: &Generator| {
            let drawn = generator.uniform([1], DType::F64)?.to_vec::<f64>()?;
            Ok::<u64, Error>(drawn[0].to_bits())
        };
        let reference = Generator::new(device, 5).unwrap();
        let expected: HashSet<u64> = (0..8).map(|_| draw(&reference).unwrap()).collect();
        let generator = Generator::new(device, 5).unwrap();
        let drawn: Arc<Mutex<Vec<u64>>> = Arc::default();
        let step = {
            let (generator, drawn) = (generator.clone(), drawn.clone());
            Box::new(move || {
                let mut step =
                    Step::new(generator.device(), |_| Ok(vec![generator.uniform([1], DType::F64)?]));
                for _ in 0..2 {
                    let outputs =
                        unrelated_to_recordings(|| step.call(&[])).map(|o| o.to_vec::<f64>(0).unwrap());
                    if let Ok(value) = &outputs {
                        drawn.lock().unwrap().push(value[0].to_bits());
                    }
                    assert!(done(outputs));
                }
            }) as Work
        };
        let draws = {
            let (generator, drawn) = (generator.clone(), drawn.clone());
            Box::new(move || {
                for _ in 0..2 {
                    let value = unrelated_to_recordings(|| draw(&generator)).unwrap();
                    drawn.lock().unwrap().push(value);
                }
            }) as Work
        };
        side_by_side([step, draws]);
        let drawn = drawn.lock().unwrap();
        let distinct: HashSet<u64> = drawn.iter().copied().collect();
        assert_eq!((drawn.len(), distinct.len()), (4, 4));
        assert!(distinct.is_subset(&expected));
    });
}
