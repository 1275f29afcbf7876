//! Long tapes on small stacks, and tensors shared by threads and thread pools.

mod common;

use std::sync::mpsc;
use std::time::Duration;

use common::{devices, leaf, sanitized, turn, values};
use refrain::{DType, Tensor, no_grad};

/// Runs `f` on a thread with a small stack; fails if it is not done in time.
fn within(seconds: u64, stack: usize, f: impl FnOnce() + Send + 'static) {
    let (done, wait) = mpsc::channel();
    let thread = std::thread::Builder::new().stack_size(stack).spawn(move || {
        f();
        done.send(()).unwrap();
    });
    let thread = thread.unwrap();
    match wait.recv_timeout(Duration::from_secs(seconds)) {
        Ok(()) => thread.join().unwrap(),
        Err(mpsc::RecvTimeoutError::Disconnected) => std::panic::resume_unwind(thread.join().unwrap_err()),
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("not done after {seconds} s: a deadlock"),
    }
}

#[test]
fn a_chain_of_100_000_operations_runs_backward_and_drops_on_a_small_stack() {
    let _turn = turn();
    let length = if sanitized() { 2_000 } else { 100_000 };
    for device in devices() {
        within(300, 256 << 10, move || {
            let x = leaf(&[1.0, 2.0], &device);
            let mut y = x.clone();
            for i in 0..length {
                y = match i % 4 {
                    0 => y.neg(),
                    1 => y.reshape([2, 1]),
                    2 => y.narrow(1, 0, 1).and_then(|y| y.squeeze(1)),
                    _ => y.abs(),
                }
                .unwrap();
            }
            y.sum(()).unwrap().backward().unwrap();
            assert_eq!(values(&x.grad().unwrap()), [1.0, 1.0]);
            drop(y);
            // Dropped without a backward pass, and as a ladder of shared nodes.
            let mut y = x.clone();
            for _ in 0..length {
                y = y.add(&y).unwrap().mul_scalar(0.5).unwrap();
            }
            assert_eq!(values(&y), [1.0, 2.0]);
            drop(y);
        });
    }
}

#[test]
fn threads_that_share_tensors_in_opposite_orders_do_not_deadlock() {
    let _turn = turn();
    for device in devices() {
        within(120, 2 << 20, move || {
            // Large enough for kernels to use several threads.
            let a = Tensor::ones([200, 300], DType::F32, &device).unwrap();
            let b = Tensor::ones([200, 300], DType::F32, &device).unwrap();
            let c = Tensor::ones([200, 300], DType::F32, &device).unwrap();
            std::thread::scope(|s| {
                let orders = [[&a, &b, &c], [&b, &a, &c], [&c, &b, &a], [&b, &c, &a]];
                for [x, y, z] in orders {
                    s.spawn(move || {
                        for _ in 0..100 {
                            x.add_into(y, z).unwrap();
                            z.clamp_into(0.0, 2.0, z).unwrap();
                            y.mul_scalar_into(1.0, x).unwrap();
                            assert!(x.to_vec::<f32>().unwrap().iter().all(|v| v.is_finite()));
                        }
                    });
                }
            });
        });
    }
}

#[test]
fn use_inside_and_beside_a_thread_pool_does_not_deadlock() {
    use rayon::prelude::*;
    let _turn = turn();
    for device in devices() {
        within(120, 2 << 20, move || {
            let shared = Tensor::ones([300, 300], DType::F32, &device).unwrap();
            let total = Tensor::zeros([300, 300], DType::F32, &device).unwrap();
            std::thread::scope(|s| {
                // A plain thread writes what the pool's tasks read and add to.
                s.spawn(|| {
                    for _ in 0..100 {
                        total.add_assign(&shared).unwrap();
                        shared.matmul(&shared).unwrap();
                    }
                });
                (0..200).into_par_iter().for_each(|i| {
                    total.add_assign(&shared).unwrap();
                    let sum = shared.exp().unwrap().sum(()).unwrap().to_scalar::<f32>().unwrap();
                    assert!((sum - 90_000.0 * 1f32.exp()).abs() < 1.0, "task {i}: {sum}");
                    // Tasks within tasks.
                    rayon::join(|| total.sum(()).unwrap(), || shared.add(&total).unwrap());
                });
            });
            assert!(total.to_vec::<f32>().unwrap().iter().all(|&v| v == 300.0));
        });
    }
}

#[test]
fn the_tape_and_no_grad_belong_to_a_thread() {
    let _turn = turn();
    for device in devices() {
        let x = leaf(&[1.0], &device);
        no_grad(|| {
            assert!(!x.exp().unwrap().requires_grad());
            std::thread::scope(|s| {
                s.spawn(|| assert!(x.exp().unwrap().requires_grad()));
            });
        });
        let _ = std::panic::catch_unwind(|| no_grad(|| panic!("on purpose")));
        assert!(refrain::is_grad_enabled());
        // Gradients of one leaf from several threads add up.
        std::thread::scope(|s| {
            for _ in 0..8 {
                s.spawn(|| {
                    for _ in 0..50 {
                        x.square().unwrap().sum(()).unwrap().backward().unwrap();
                    }
                });
            }
        });
        assert_eq!(values(&x.grad().unwrap()), [800.0]);
    }
}
