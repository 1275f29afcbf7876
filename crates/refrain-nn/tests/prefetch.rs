//! Batches that a thread reads ahead.

mod common;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use common::device;
use refrain::optim::{AdamWOptions, Schedule};
use refrain::{DType, Generator, Step, Tensor};
use refrain_nn::{AdamW, Error, Linear, Optimizer, ParameterBuilder, Prefetch, Result};

type Read<T> = std::result::Result<Option<T>, std::io::Error>;

/// Waits until `is_so`, at most some seconds.
fn wait(is_so: impl Fn() -> bool) -> bool {
    let end = Instant::now() + Duration::from_secs(20);
    while !is_so() && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(2));
    }
    is_so()
}

#[test]
fn batches_come_in_order_and_the_thread_is_only_so_far_ahead() {
    let asked = Arc::new(AtomicUsize::new(0));
    let count = asked.clone();
    let read = move |batch: usize| -> Read<usize> {
        count.fetch_add(1, Ordering::SeqCst);
        Ok((batch < 20).then_some(batch * batch))
    };
    let mut batches = Prefetch::new(3, read).unwrap();
    for at in 0..20 {
        // Three in the queue and one that waits to get in.
        let most = (at + 4).min(21);
        assert!(wait(|| asked.load(Ordering::SeqCst) == most), "batch {at}");
        std::thread::sleep(Duration::from_millis(1));
        assert_eq!(asked.load(Ordering::SeqCst), most, "batch {at}");
        assert_eq!(batches.next().unwrap().unwrap(), at * at);
    }
    assert!(batches.next().is_none() && batches.next().is_none());
}

#[test]
fn an_error_comes_in_the_place_of_its_batch_and_is_the_last_item() {
    let read = |batch: usize| -> Read<usize> {
        match batch {
            2 => Err(std::io::Error::other("the disk is gone")),
            _ => Ok(Some(batch)),
        }
    };
    let items: Vec<Result<usize>> = Prefetch::new(5, read).unwrap().collect();
    assert_eq!(items.len(), 3);
    assert!(matches!((&items[0], &items[1]), (Ok(0), Ok(1))));
    assert!(matches!(items[2], Err(Error::Batch { batch: 2, .. })));
    let message = items[2].as_ref().unwrap_err().to_string();
    assert!(message.contains("batch 2") && message.contains("the disk is gone"), "{message}");
    assert!(Prefetch::new(0, read).is_err());
}

#[test]
fn a_panic_of_the_thread_is_an_error_of_the_caller() {
    let read = |batch: usize| -> Read<usize> {
        assert!(batch < 1, "broken data");
        Ok(Some(batch))
    };
    let items: Vec<Result<usize>> = Prefetch::new(1, read).unwrap().collect();
    assert_eq!(items.len(), 2);
    let message = items[1].as_ref().unwrap_err().to_string();
    assert!(message.contains("batch 1") && message.contains("broken data"), "{message}");
}

#[test]
fn dropping_it_early_ends_its_thread() {
    // While the queue is full, while the thread reads, and before the first batch.
    for taken in [0, 1, 4] {
        let held = Arc::new(());
        let alive = Arc::downgrade(&held);
        let read = move |batch: usize| -> Read<usize> {
            let _ = &held;
            Ok(Some(batch))
        };
        let mut batches = Prefetch::new(2, read).unwrap();
        for at in 0..taken {
            assert_eq!(batches.next().unwrap().unwrap(), at);
        }
        drop(batches);
        // The thread has given its closure back.
        assert!(alive.upgrade().is_none(), "{taken} batches taken");
    }
    let barrier = Arc::new(Barrier::new(2));
    let held = Arc::new(());
    let alive = Arc::downgrade(&held);
    let theirs = barrier.clone();
    let read = move |batch: usize| -> Read<usize> {
        let _ = &held;
        theirs.wait();
        Ok(Some(batch))
    };
    let batches = Prefetch::new(2, read).unwrap();
    let dropping = std::thread::spawn(move || drop(batches));
    // It waits for the batch at hand.
    std::thread::sleep(Duration::from_millis(5));
    assert!(alive.upgrade().is_some());
    barrier.wait();
    dropping.join().unwrap();
    assert!(alive.upgrade().is_none());
}

/// Trains on batches that are read ahead, or read as they are needed. Returns losses and weights.
fn train(ahead: bool, recorded: bool) -> (Vec<f32>, Vec<f32>) {
    let builder = ParameterBuilder::new(&device(), DType::F32);
    let layer = Linear::new(&builder, 4, 1).unwrap();
    let parameters = builder.build(&Generator::new(&device(), 1).unwrap()).unwrap();
    let optimizer =
        AdamW::new(&parameters, AdamWOptions::default(), Schedule::Constant { lr: 0.05 }).unwrap();
    let body = |t: &[Tensor]| -> Result<Vec<Tensor>> {
        let loss = layer.forward(&t[0])?.mse_loss(&t[1])?;
        loss.backward()?;
        optimizer.step()?;
        Ok(vec![loss.detach()])
    };
    let mut step = Step::new(&device(), |t: &[Tensor]| Ok(body(t)?));
    // The last batch is smaller.
    let read = |batch: usize| -> Read<[Vec<f32>; 2]> {
        let rows = if batch == 11 { 3 } else { 8 };
        let x: Vec<f32> = (0..rows * 4).map(|i| ((batch * 97 + i * 31) as f32 * 0.7).sin()).collect();
        let y = x.chunks(4).map(|row| row.iter().sum::<f32>()).collect();
        Ok((batch < 12).then_some([x, y]))
    };
    let mut losses = Vec::new();
    let mut call = |[x, y]: [Vec<f32>; 2]| {
        let rows = y.len();
        let x = Tensor::from_slice(&x, [rows, 4], &device()).unwrap();
        let y = Tensor::from_slice(&y, [rows, 1], &device()).unwrap();
        losses.push(match recorded {
            true => step.call(&[x, y]).unwrap().to_scalar::<f32>(0).unwrap(),
            false => body(&[x, y]).unwrap()[0].to_scalar::<f32>().unwrap(),
        });
    };
    match ahead {
        true => Prefetch::new(2, read).unwrap().for_each(|batch| call(batch.unwrap())),
        false => (0..12).for_each(|at| call(read(at).unwrap().unwrap())),
    }
    step.finish().unwrap();
    (losses, parameters.values().to_vec().unwrap())
}

#[test]
fn training_on_batches_that_are_read_ahead_has_the_bits_of_training_without() {
    let expected = train(false, false);
    assert_eq!(expected.0.len(), 12);
    assert!(expected.0[10] < 0.5 * expected.0[0], "{:?}", expected.0);
    for (ahead, recorded) in [(true, false), (false, true), (true, true)] {
        assert_eq!(train(ahead, recorded), expected, "ahead: {ahead}, recorded: {recorded}");
    }
}
