//! **Seen:** on a machine whose GPU shares the host's memory, the host read a tensor through its pointer. Nothing ordered
//! that after the kernels that were still to run, not even waiting for another stream: it got what was there before, or
//! half of it.
//!
//! **Found here:** a way from the device to the host that does not wait for the work that writes what it reads; a write by
//! the host that overtakes work which still reads what was there.

use std::slice::from_ref;

use refrain::{DType, Device, Generator, Step, Tensor};

use crate::common::{counting, devices, simulators, turn};

const N: usize = 20_000;
const ADDED: usize = 30;

/// Much work, none of it waited for: `0, 1, ..` and thirty times 1.
fn pending(device: &Device) -> Tensor {
    let x = counting(N, device);
    (0..ADDED).for_each(|_| x.add_scalar_assign(1.0).unwrap());
    x
}

/// The devices, and simulated GPUs under other seeds, which say how late work runs.
fn everywhere() -> impl Iterator<Item = Device> {
    devices().chain(simulators())
}

#[test]
fn every_way_of_reading_waits_for_what_it_reads() {
    let _turn = turn();
    for device in everywhere() {
        let expected: Vec<f32> = (0..N).map(|i| (i + ADDED) as f32).collect();
        assert_eq!(pending(&device).to_vec::<f32>().unwrap(), expected, "to_vec on {device}");
        let mut read = vec![0.0f32; N];
        pending(&device).read_into(&mut read).unwrap();
        assert_eq!(read, expected, "read_into on {device}");
        let last = pending(&device).narrow(0, N - 1, 1).unwrap();
        assert_eq!(last.to_scalar::<f32>().unwrap(), expected[N - 1], "to_scalar on {device}");
        let scattered = pending(&device).reshape([N / 4, 4]).unwrap().select(1, 3).unwrap();
        let every_fourth: Vec<f32> = expected.iter().copied().skip(3).step_by(4).collect();
        assert_eq!(scattered.to_vec::<f32>().unwrap(), every_fourth, "a strided view on {device}");
        let shown = pending(&device).narrow(0, 0, 2).unwrap().to_string();
        assert!(shown.contains("30") && shown.contains("31"), "{shown} on {device}");
        let on_host = pending(&device).to_device(&Device::cpu()).unwrap();
        assert_eq!(on_host.to_vec::<f32>().unwrap(), expected, "to_device on {device}");
    }
}

#[test]
fn what_a_replay_computed_is_there_when_it_is_read() {
    let _turn = turn();
    for device in everywhere() {
        let total = Tensor::zeros([N], DType::F32, &device).unwrap();
        let generator = Generator::new(&device, 5).unwrap();
        let mut step = Step::new(&device, |x| {
            for _ in 0..5 {
                total.add_assign(&x[0])?;
            }
            generator.uniform([8], DType::F32)?;
            Ok(vec![total.mul_scalar(2.0)?, total.narrow(0, N - 1, 1)?])
        });
        let x = counting(N, &device);
        for round in 1..4 {
            let outputs = step.call(from_ref(&x)).unwrap();
            let last = (5 * round * (N - 1)) as f32;
            assert_eq!(outputs.to_scalar::<f32>(1).unwrap(), last, "{device}");
            assert_eq!(outputs.to_vec::<f32>(0).unwrap()[N - 1], 2.0 * last, "{device}");
            // State that the step moves, read from outside.
            assert_eq!(total.to_vec::<f32>().unwrap()[N - 1], last, "{device}");
        }
        step.finish().unwrap();
    }
}

#[test]
fn a_write_by_the_host_comes_after_work_that_reads_what_was_there() {
    let _turn = turn();
    for device in everywhere() {
        let x = counting(N, &device);
        let sums: Vec<Tensor> = (0..6)
            .map(|round| {
                let doubled = x.mul_scalar(2.0).unwrap();
                x.write_from(&vec![round as f32; N]).unwrap();
                doubled
            })
            .collect();
        for (round, doubled) in sums.iter().enumerate() {
            let expected = if round == 0 { 2.0 * (N - 1) as f32 } else { 2.0 * (round - 1) as f32 };
            assert_eq!(doubled.to_vec::<f32>().unwrap()[N - 1], expected, "round {round} on {device}");
        }
    }
}
