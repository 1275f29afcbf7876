//! Batches: each sample once an epoch, the same order wherever a run is taken up.

mod common;

use common::{device, turn};
use refrain::{DeviceKind, Generator, Step};
use refrain_nn::Batches;

/// The samples of the steps from `first` on, each batch by itself.
fn taken(batches: &Batches, step: &mut Option<Step<'_>>, first: usize) -> Vec<Vec<i64>> {
    let take = |at| match step {
        Some(step) => step.call(&[batches.positions(at).clone()]).unwrap().to_vec::<i64>(0).unwrap(),
        None => batches.next(batches.positions(at)).unwrap().to_vec::<i64>().unwrap(),
    };
    (first..batches.steps()).map(take).collect()
}

#[test]
fn an_epoch_takes_each_sample_once_in_an_order_of_seed_and_epoch() {
    let _turn = turn();
    let device = device();
    let samples: Vec<i64> = (0..23).map(|i| 100 + 3 * i).collect();
    let make = |seed| Batches::new(samples.iter().copied(), 5, seed, &device).unwrap();
    let (batches, other) = (make(1), make(2));
    assert_eq!((batches.steps(), batches.full_steps()), (5, 4));
    let mut recorded = Some(Step::new(&device, |positions| Ok(vec![batches.next(&positions[0])?])));
    let mut orders = Vec::new();
    for epoch in 0..3 {
        batches.begin(epoch, 0).unwrap();
        let order = taken(&batches, &mut recorded, 0);
        assert_eq!(order.iter().map(Vec::len).collect::<Vec<_>>(), [5, 5, 5, 5, 3]);
        let mut sorted = order.concat();
        sorted.sort_unstable();
        assert_eq!(sorted, samples);
        // Eagerly, and from the middle of the epoch on.
        batches.begin(epoch, 0).unwrap();
        assert_eq!(taken(&batches, &mut None, 0), order);
        batches.begin(epoch, 3).unwrap();
        assert_eq!(taken(&batches, &mut recorded, 3), order[3..]);
        other.begin(epoch, 0).unwrap();
        assert_ne!(taken(&other, &mut None, 0), order);
        orders.push(order);
    }
    recorded.take().unwrap().finish().unwrap();
    assert!(orders[0] != orders[1] && orders[1] != orders[2]);
    // The order is that of the generator's keys.
    let keys = Generator::from_state(&device, 1, 23).unwrap();
    let keys = keys.uniform(23, refrain::DType::F64).unwrap().to_vec::<f64>().unwrap();
    assert!(
        orders[1]
            .concat()
            .windows(2)
            .all(|w| keys[(w[0] as usize - 100) / 3] < keys[(w[1] as usize - 100) / 3])
    );
}

#[test]
fn samples_come_in_order_if_asked_and_an_epoch_may_be_shorter_than_a_batch() {
    let _turn = turn();
    let device = device();
    let batches = Batches::new([6, 5, 4, 3, 2, 1, 0], 3, 0, &device).unwrap();
    batches.begin_in_order(0).unwrap();
    assert_eq!(taken(&batches, &mut None, 0), [vec![6, 5, 4], vec![3, 2, 1], vec![0]]);
    batches.begin_in_order(1).unwrap();
    assert_eq!(taken(&batches, &mut None, 1), [vec![3, 2, 1], vec![0]]);
    if device.kind() == DeviceKind::Cpu {
        // After the last batch, and before an epoch is begun.
        for batches in [&batches, &Batches::new([0, 1], 1, 0, &device).unwrap()] {
            let error = batches.next(batches.positions(0)).unwrap_err().to_string();
            assert!(error.contains("call `begin`"), "{error}");
        }
    }
    // A recorded step says so, too.
    for batches in [&batches, &Batches::new([0, 1], 1, 0, &device).unwrap()] {
        let mut step = Step::new(&device, |positions| Ok(vec![batches.next(&positions[0])?]));
        let called = step.call(&[batches.positions(0).clone()]).map(drop);
        let error = called.and_then(|()| device.synchronize()).unwrap_err().to_string();
        assert!(error.starts_with("Batches: "), "{error}");
        assert!(device.kind() == DeviceKind::Cuda || error.contains("call `begin`"), "{error}");
    }
    let small = Batches::new([1, 0], 5, 0, &device).unwrap();
    small.begin_in_order(0).unwrap();
    assert_eq!(taken(&small, &mut None, 0), [[1, 0]]);
    let error = Batches::new([1], 0, 0, &device).err().unwrap().to_string();
    assert!(error.contains("batch size is 0"), "{error}");
}
