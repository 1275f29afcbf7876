//! Collectives between threads, on the CPU and on simulated GPUs with both kinds of memory.

mod common;

use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::time::{Duration, Instant};

use common::training::{Model, batch};
use common::{tensor, values, vector};
use refrain::{
    Communicator, CommunicatorId, CommunicatorOptions, DType, Device, Error, HostTransport, Profile,
    ReduceOp, Result, Simulator, Step, Tensor, bf16,
};

/// The dtypes of collectives.
const DTYPES: [DType; 5] = [DType::F64, DType::F32, DType::F16, DType::BF16, DType::I64];

/// Runs `f` on each rank, in a thread of its own, and returns what it returns, by rank.
fn on_ranks<R: Send>(devices: &[Device], f: impl Fn(Communicator) -> R + Sync) -> Vec<R> {
    of_ranks(Communicator::in_process(devices).unwrap(), f)
}

fn of_ranks<C: Send, R: Send>(ranks: Vec<C>, f: impl Fn(C) -> R + Sync) -> Vec<R> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = ranks.into_iter().map(|rank| scope.spawn(|| f(rank))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// So many simulated GPUs, with seeds of their own.
fn simulated(size: usize, profile: Profile, seed: u64) -> Vec<Device> {
    (0..size as u64).map(|rank| Simulator::new(profile).seed(100 * seed + rank).device()).collect()
}

/// Groups of 2, 3 and 8 devices: CPUs, and simulated GPUs of both kinds with several seeds.
fn groups() -> Vec<Vec<Device>> {
    let seeds = std::env::var("REFRAIN_SIM_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(2);
    let mut groups = Vec::new();
    for size in [2, 3, 8] {
        groups.push(vec![Device::cpu(); size]);
        for seed in 0..seeds {
            groups
                .extend([Profile::Discrete, Profile::Unified].map(|profile| simulated(size, profile, seed)));
        }
    }
    groups
}

/// Whole numbers that all dtypes hold, also their sums over 8 ranks.
fn whole(rank: usize, n: usize) -> Vec<f64> {
    (0..n).map(|i| ((3 * i + 5 * rank) % 13) as f64 - 6.0).collect()
}

#[test]
fn collectives_give_what_their_definitions_say() {
    for devices in groups() {
        let size = devices.len();
        let n = 2 * size;
        let sum: Vec<f64> = (0..n).map(|i| (0..size).map(|rank| whole(rank, n)[i]).sum()).collect();
        on_ranks(&devices, |rank| {
            for dtype in DTYPES {
                let mine = || tensor(&whole(rank.rank(), n), [size, 2], dtype, rank.device());
                let part = rank.rank() * 2..rank.rank() * 2 + 2;
                let y = rank.all_reduce(&mine(), ReduceOp::Sum).unwrap();
                assert_eq!((y.dims(), y.dtype(), values(&y)), (&[size, 2][..], dtype, sum.clone()));
                let into = tensor(&vec![9.0; n], [size, 2], dtype, rank.device());
                rank.all_reduce_into(&mine(), ReduceOp::Sum, &into).unwrap();
                assert_eq!(values(&into), sum);
                let x = mine();
                rank.all_reduce_assign(&x, ReduceOp::Sum).unwrap();
                assert_eq!(values(&x), sum);

                let root = size - 1;
                assert_eq!(values(&rank.broadcast(&mine(), root).unwrap()), whole(root, n));
                rank.broadcast_into(&mine(), 0, &into).unwrap();
                assert_eq!(values(&into), whole(0, n));
                let x = mine();
                rank.broadcast_assign(&x, 1).unwrap();
                assert_eq!(values(&x), whole(1, n));

                let all: Vec<f64> = (0..size).flat_map(|rank| whole(rank, n)).collect();
                let y = rank.all_gather(&mine()).unwrap();
                assert_eq!((y.dims(), values(&y)), (&[size * size, 2][..], all.clone()));
                let into = tensor(&vec![9.0; size * n], [size * size, 2], dtype, rank.device());
                rank.all_gather_into(&mine(), &into).unwrap();
                assert_eq!(values(&into), all);

                let y = rank.reduce_scatter(&mine(), ReduceOp::Sum).unwrap();
                assert_eq!((y.dims(), values(&y)), (&[1, 2][..], sum[part.clone()].to_vec()));
                let into = tensor(&[9.0, 9.0], [1, 2], dtype, rank.device());
                rank.reduce_scatter_into(&mine(), ReduceOp::Sum, &into).unwrap();
                assert_eq!(values(&into), sum[part.clone()]);
                if dtype.is_float() {
                    // Values whose mean every dtype holds.
                    let mean: Vec<f64> = sum.iter().map(|s| s * 2.0).collect();
                    let scaled = mine().mul_scalar(2.0 * size as f64).unwrap();
                    assert_eq!(values(&rank.all_reduce(&scaled, ReduceOp::Mean).unwrap()), mean);
                    assert_eq!(values(&rank.reduce_scatter(&scaled, ReduceOp::Mean).unwrap()), mean[part]);
                }
            }
            rank.barrier().unwrap();
        });
    }
}

#[test]
fn operands_and_destinations_may_be_views_and_empty() {
    for devices in [vec![Device::cpu(); 2], simulated(2, Profile::Discrete, 3)] {
        on_ranks(&devices, |rank| {
            let x = tensor(&whole(rank.rank(), 6), [2, 3], DType::F32, rank.device());
            let sums: Vec<f64> = whole(0, 6).iter().zip(whole(1, 6)).map(|(a, b)| a + b).collect();
            let turned = [0, 3, 1, 4, 2, 5].map(|i| sums[i]);
            let y = rank.all_reduce(&x.transpose(0, 1).unwrap(), ReduceOp::Sum).unwrap();
            assert_eq!(values(&y), turned);
            // In place on a column, whose elements are not adjacent.
            rank.all_reduce_assign(&x.narrow(1, 1, 1).unwrap(), ReduceOp::Sum).unwrap();
            let mut expected = whole(rank.rank(), 6);
            (expected[1], expected[4]) = (sums[1], sums[4]);
            assert_eq!(values(&x), expected);
            let empty = Tensor::zeros([0, 3], DType::F32, rank.device()).unwrap();
            assert_eq!(rank.all_reduce(&empty, ReduceOp::Sum).unwrap().dims(), [0, 3]);
            assert_eq!(rank.all_gather(&empty).unwrap().dims(), [0, 3]);
        });
    }
}

#[test]
fn values_are_added_in_the_order_of_the_ranks_and_rounded_once() {
    for devices in [vec![Device::cpu(); 3], simulated(3, Profile::Unified, 1)] {
        let sums = on_ranks(&devices, |rank| {
            // From the last rank to the first, the sum in f32 is 0.
            let x = vector(&[[1e8f32, -1e8, 1.0][rank.rank()]], rank.device());
            // In bf16, 256 + 1 is 256; in f32, all three are 258, which bf16 holds.
            let narrow = tensor(&[[256.0, 1.0, 1.0][rank.rank()]], [1], DType::BF16, rank.device());
            let narrow = rank.all_reduce(&narrow, ReduceOp::Sum).unwrap().to_scalar::<bf16>().unwrap();
            let sum = rank.all_reduce(&x, ReduceOp::Sum).unwrap().to_scalar::<f32>().unwrap();
            let third = vector(&[1.0], rank.device());
            let mean = rank.all_reduce(&third.mul_scalar(rank.rank() as f64).unwrap(), ReduceOp::Mean);
            (sum, narrow.to_f32(), mean.unwrap().to_scalar::<f32>().unwrap())
        });
        assert_eq!(sums, [(1.0, 258.0, 1.0); 3]);
    }
}

/// A step with collectives beside other work: gradients of two parts, each summed as soon as it is there.
fn training(rank: &Communicator, recorded: bool) -> Vec<u32> {
    let device = rank.device();
    let numbers = |seed: usize, n: usize| -> Vec<f32> {
        (0..n).map(|i| ((i * 7 + seed * 5) % 11) as f32 / 11.0 - 0.4).collect()
    };
    let weights = [0, 1].map(|k| Tensor::from_slice(&numbers(k, 16), [4, 4], device).unwrap());
    let gradients = weights.each_ref().map(|w| w.zeros_like().unwrap());
    for (w, g) in weights.iter().zip(&gradients) {
        w.set_requires_grad(true).unwrap();
        w.set_grad(g).unwrap();
    }
    let one = |x: &[Tensor]| -> Result<Vec<Tensor>> {
        let hidden = x[0].matmul(&weights[0])?.tanh()?;
        let loss = hidden.matmul(&weights[1])?.square()?.mean(())?;
        loss.backward()?;
        for (w, g) in weights.iter().zip(&gradients) {
            rank.all_reduce_assign(g, ReduceOp::Mean)?;
            refrain::no_grad(|| w.sub_into(&g.mul_scalar(0.1)?, w))?;
            g.fill(0.0)?;
        }
        Ok(vec![rank.all_reduce(&loss.detach().reshape([1])?, ReduceOp::Mean)?])
    };
    let batch =
        |step: usize| Tensor::from_slice(&numbers(10 * step + rank.rank(), 12), [3, 4], device).unwrap();
    let mut bits = Vec::new();
    let mut step = Step::new(device, |x| Ok(one(x)?));
    for n in 0..4 {
        let x = [batch(n)];
        let loss: f32 = match recorded {
            true => step.call(&x).unwrap().to_scalar(0).unwrap(),
            false => one(&x).unwrap()[0].to_scalar().unwrap(),
        };
        bits.push(loss.to_bits());
    }
    step.finish().unwrap();
    for w in &weights {
        bits.extend(w.detach().to_vec::<f32>().unwrap().into_iter().map(f32::to_bits));
    }
    bits
}

#[test]
fn eager_and_recorded_steps_give_the_same_bits_on_all_ranks_devices_and_seeds() {
    for size in [2, 3, 8] {
        let mut expected: Option<Vec<u32>> = None;
        for devices in groups().into_iter().filter(|group| group.len() == size) {
            for recorded in [false, true] {
                let all = on_ranks(&devices, |rank| training(&rank, recorded));
                let expected = expected.get_or_insert_with(|| all[0].clone());
                assert!(all.iter().all(|bits| bits == expected), "{size} ranks on {}", devices[0]);
            }
        }
    }
}

#[test]
fn one_rank_alone_gets_the_bits_of_no_communicator() {
    let alone = on_ranks(&[Device::cpu()], |rank| {
        let x = vector(&[0.1, -0.0, f32::INFINITY], rank.device());
        let bits = |t: Tensor| t.to_vec::<f32>().unwrap().into_iter().map(f32::to_bits).collect::<Vec<_>>();
        assert_eq!(bits(rank.all_reduce(&x, ReduceOp::Sum).unwrap()), bits(x.clone()));
        assert_eq!(bits(rank.all_reduce(&x, ReduceOp::Mean).unwrap()), bits(x.clone()));
        assert_eq!(bits(rank.all_gather(&x).unwrap()), bits(x.clone()));
        rank.collectives()
    });
    assert_eq!(alone, [3]);
}

/// The message of a rule that was broken: a hazard on simulated GPUs, a failed collective on the CPU.
#[track_caller]
fn broken<T>(device: &Device, result: Result<T>) -> String {
    match (device.name().starts_with("sim"), result.map(drop)) {
        (true, Err(Error::Hazard { message, .. })) | (false, Err(Error::Collective { message, .. })) => {
            message
        }
        (_, other) => panic!("{device}: {other:?}"),
    }
}

type Rank = fn(&Communicator) -> Result<()>;

/// The messages of all ranks if rank 1 does something else than the others.
fn stories(others: Rank, rank_1: Rank) -> Vec<String> {
    let mut all = Vec::new();
    for devices in groups() {
        let begin = Instant::now();
        let results = on_ranks(&devices, |rank| {
            let result = if rank.rank() == 1 { rank_1(&rank) } else { others(&rank) };
            (rank.rank(), rank.device().clone(), result)
        });
        for (rank, device, result) in results {
            if rank != 1 || result.is_err() {
                all.push(broken(&device, result));
            }
        }
        assert!(begin.elapsed() < Duration::from_secs(60), "it took the time limit");
    }
    all
}

fn ones(rank: &Communicator, n: usize) -> Result<Tensor> {
    Tensor::ones([n], DType::F32, rank.device())
}

#[track_caller]
fn all_say(stories: &[String], parts: &[&str]) {
    for story in stories {
        for part in parts {
            assert!(story.contains(part), "`{part}` is missing in: {story}");
        }
    }
}

#[test]
fn ranks_that_call_different_collectives_are_told_what_each_has_called() {
    let sum: Rank = |rank| rank.all_reduce(&ones(rank, 4)?, ReduceOp::Sum).map(drop);
    let begins = ["rank 1 waits in", "the same collectives in the same order"];
    let others: [(Rank, &str); 7] = [
        (|rank| rank.all_reduce(&ones(rank, 5)?, ReduceOp::Sum).map(drop), "all_reduce (sum of 5 f32)"),
        (|rank| rank.all_reduce(&ones(rank, 4)?, ReduceOp::Mean).map(drop), "all_reduce (mean of 4 f32)"),
        (
            |rank| rank.all_reduce(&ones(rank, 4)?.to_dtype(DType::F64)?, ReduceOp::Sum).map(drop),
            "all_reduce (sum of 4 f64)",
        ),
        (|rank| rank.broadcast(&ones(rank, 4)?, 0).map(drop), "broadcast (4 f32 of rank 0)"),
        (|rank| rank.all_gather(&ones(rank, 4)?).map(drop), "all_gather (4 f32 of each rank)"),
        (
            |rank| {
                let size = rank.size();
                rank.reduce_scatter(&ones(rank, 4 * size)?, ReduceOp::Sum).map(drop)
            },
            "reduce_scatter (sum of",
        ),
        (Communicator::barrier, "barrier"),
    ];
    for (other, name) in others {
        let stories = stories(sum, other);
        all_say(&stories, &begins);
        all_say(
            &stories,
            &["call different collectives", "waits in all_reduce (sum of 4 f32), collective 0", name],
        );
    }
}

#[test]
fn an_order_that_differs_is_told_with_the_number_of_the_collective() {
    let both = |rank: &Communicator, first: bool| -> Result<()> {
        rank.barrier()?;
        match first {
            true => {
                rank.broadcast(&ones(rank, 2)?, 0)?.add(&rank.all_gather(&ones(rank, 2)?)?.narrow(0, 0, 2)?)
            }
            false => {
                rank.all_gather(&ones(rank, 2)?)?.narrow(0, 0, 2)?.add(&rank.broadcast(&ones(rank, 2)?, 0)?)
            }
        }
        .map(drop)
    };
    for devices in groups() {
        for (rank, result) in on_ranks(&devices, |rank| both(&rank, rank.rank() != 0)).into_iter().enumerate()
        {
            let story = broken(&devices[rank], result);
            all_say(
                &[story],
                &["rank 0 waits in all_gather", "waits in broadcast", "collective 1 of communicator"],
            );
        }
    }
}

#[test]
fn a_rank_that_ends_while_others_wait_is_an_error_and_no_hang() {
    let two: Rank = |rank| {
        rank.all_reduce(&ones(rank, 4)?, ReduceOp::Sum)?;
        rank.all_gather(&ones(rank, 3)?).map(drop)
    };
    let one: Rank = |rank| rank.all_reduce(&ones(rank, 4)?, ReduceOp::Sum).map(drop);
    let ended = "rank 1 has ended after all_reduce (sum of 4 f32), collective 0";
    all_say(
        &stories(two, one),
        &["a rank has ended", "waits in all_gather (3 f32 of each rank), collective 1", ended],
    );
    all_say(&stories(one, |_| Ok(())), &["rank 1 has ended before its first collective"]);
}

#[test]
fn a_rank_whose_device_is_lost_is_an_error_on_the_others() {
    for profile in [Profile::Discrete, Profile::Unified] {
        let lost = Simulator::new(profile).lose_at_launch(4).device();
        let devices = [Simulator::new(profile).device(), lost, Simulator::new(profile).device()];
        let results = on_ranks(&devices, |rank| -> Result<()> {
            for _ in 0..3 {
                rank.all_reduce(&ones(&rank, 2)?, ReduceOp::Sum)?.to_vec::<f32>()?;
            }
            Ok(())
        });
        for (rank, result) in results.into_iter().enumerate() {
            match (rank, result) {
                (1, Err(Error::DeviceLost { .. })) => {}
                (0 | 2, Err(Error::Hazard { message, .. })) => {
                    assert!(message.contains("rank 1 has ended after all_reduce"), "{message}");
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

#[test]
fn gpus_that_wait_for_one_another_in_two_communicators_are_found() {
    for profile in [Profile::Discrete, Profile::Unified] {
        for seed in 0..4 {
            let devices = simulated(2, profile, seed);
            let begin = Instant::now();
            let [a, b] = [0, 1].map(|_| Communicator::in_process(&devices).unwrap());
            let pairs: Vec<_> = a.into_iter().zip(b).collect();
            let results = of_ranks(pairs, |(a, b)| {
                let x = ones(&a, 2)?;
                let [first, second] = if a.rank() == 0 { [&a, &b] } else { [&b, &a] };
                first.all_reduce(&x, ReduceOp::Sum)?;
                second.all_gather(&x)?.to_vec::<f32>()
            });
            for (device, result) in devices.iter().zip(results) {
                let parts =
                    ["wait for one another", "rank 0 waits in all_reduce", "rank 1 waits in all_reduce"];
                all_say(&[broken(device, result)], &parts);
            }
            assert!(begin.elapsed() < Duration::from_secs(60), "it took the time limit");
        }
    }
}

#[test]
fn two_communicators_in_opposite_order_in_a_recorded_step_are_refused_on_all_ranks() {
    for devices in groups() {
        let [a, b] = [0, 1].map(|_| Communicator::in_process(&devices).unwrap());
        let pairs: Vec<_> = a.into_iter().zip(b).collect();
        let results = of_ranks(pairs, |(a, b)| {
            let [first, second] = if a.rank() == 1 { [&b, &a] } else { [&a, &b] };
            let mut step = Step::new(a.device(), |x| {
                Ok(vec![second.all_reduce(&first.all_reduce(&x[0], ReduceOp::Sum)?, ReduceOp::Sum)?])
            });
            step.call(&[ones(&a, 2)?]).map(drop)
        });
        for result in results {
            assert!(
                matches!(&result, Err(Error::RanksDiffer { ranks, launch: 0, .. }) if ranks == &[1]),
                "{result:?}"
            );
        }
    }
}

#[test]
fn the_first_collectives_of_a_communicator_may_be_those_of_a_recorded_step() {
    for devices in groups() {
        let size = devices.len() as f64;
        on_ranks(&devices, |rank| {
            let x = [tensor(&[rank.rank() as f64, 1.0], [2], DType::F32, rank.device())];
            assert_eq!(rank.collectives(), 0);
            let mut step = Step::new(rank.device(), |x| {
                let sum = rank.all_reduce(&x[0], ReduceOp::Sum)?;
                let mean = rank.all_reduce(&x[0].mul(&sum)?, ReduceOp::Mean)?;
                Ok(vec![sum, mean])
            });
            let sum = size * (size - 1.0) / 2.0;
            for call in 0..3 {
                let outputs = step.call(&x).unwrap();
                let [got, mean] = [0, 1].map(|at| values(&outputs.copy(at).unwrap()));
                assert_eq!(got, [sum, size], "call {call}");
                let expected = sum * sum / size;
                assert!(
                    (mean[0] - expected).abs() < 1e-5 * expected && mean[1] == size,
                    "call {call}: {mean:?}"
                );
            }
            step.finish().unwrap();
        });
    }
}

#[test]
fn a_profile_of_all_ranks_counts_its_collectives() {
    for devices in groups() {
        on_ranks(&devices, |rank| {
            let x = [ones(&rank, 4).unwrap()];
            let mut step = Step::new(rank.device(), |x| Ok(vec![rank.all_reduce(&x[0], ReduceOp::Sum)?]));
            step.call(&x).unwrap();
            let before = rank.collectives();
            let profile = step.profile(&x, 3).unwrap();
            assert!(profile.lines().iter().any(|line| line.operation == "all_reduce"));
            assert_eq!(rank.collectives() - before, 3);
            step.finish().unwrap();
        });
    }
}

#[test]
fn a_rank_that_does_not_come_is_named_after_the_time_limit() {
    for devices in groups() {
        let options = CommunicatorOptions::new().time_limit(Duration::from_millis(100));
        let mut ranks = Communicator::in_process_with(&devices, options).unwrap();
        // It is alive, but does nothing.
        let idle = ranks.remove(1);
        let results = of_ranks(ranks, |rank| (rank.device().clone(), rank.barrier()));
        for (device, result) in results {
            let parts = [
                "did not come within 100ms",
                "rank 0 waits in barrier",
                "rank 1 has not come (before its first",
            ];
            all_say(&[broken(&device, result)], &parts);
        }
        assert!(matches!(idle.barrier(), Err(Error::Hazard { .. } | Error::Collective { .. })));
    }
}

#[test]
fn an_abort_ends_the_wait_of_every_rank_and_all_later_calls() {
    for devices in groups() {
        let mut ranks = Communicator::in_process(&devices).unwrap();
        let watched = ranks.remove(1);
        let watchdog = ranks[0].clone();
        let (waits, has_begun) = mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                has_begun.recv().unwrap();
                std::thread::sleep(Duration::from_millis(20));
                watchdog.abort("rank 1 on host b stopped at step 5");
            });
            let threads: Vec<_> = ranks
                .into_iter()
                .map(|rank| {
                    let waits = waits.clone();
                    scope.spawn(move || {
                        let x = ones(&rank, 2).unwrap();
                        waits.send(()).unwrap();
                        [rank.all_reduce(&x, ReduceOp::Sum).map(drop), rank.barrier()]
                    })
                })
                .collect();
            for error in threads.into_iter().flat_map(|thread| thread.join().unwrap()) {
                match error {
                    Err(Error::Collective { message, .. }) => {
                        all_say(&[message], &["aborted", "rank 1 on host b stopped at step 5"])
                    }
                    other => panic!("{other:?}"),
                }
            }
        });
        assert!(matches!(watched.barrier(), Err(Error::Collective { rank: 1, .. })));
    }
}

#[test]
fn ranks_that_record_different_steps_are_told_which_and_where() {
    for devices in groups() {
        let size = devices.len();
        let results = on_ranks(&devices, |rank| {
            let x = [ones(&rank, 4)?];
            let odd = rank.rank() == size - 1;
            let mut step = Step::new(rank.device(), |x| {
                let y = x[0].sum_keepdim(0)?;
                let y = if odd { y.mul_scalar(2.0)? } else { y.mul_scalar(3.0)? };
                Ok(vec![rank.all_reduce(&y, ReduceOp::Sum)?])
            });
            step.call(&x).map(drop)
        });
        for result in results {
            match result {
                Err(Error::RanksDiffer { ranks, launch: 1, message }) => {
                    assert_eq!(ranks, [size - 1]);
                    let last = format!("rank {}: mul", size - 1);
                    all_say(
                        &[message],
                        &["0", ": mul", "3.0", &last, "2.0", "keep what differs between ranks"],
                    );
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

#[test]
fn a_rank_whose_step_has_more_launches_or_other_shapes_differs_there() {
    type Body = fn(&Communicator, &Tensor) -> Result<Tensor>;
    let sum: Body = |rank, x| rank.all_reduce(x, ReduceOp::Sum);
    let more: Body = |rank, x| rank.all_reduce(x, ReduceOp::Sum)?.exp();
    let narrow: Body = |rank, x| rank.all_reduce(&x.narrow(0, 1, 3)?, ReduceOp::Sum);
    let mean: Body = |rank, x| rank.all_reduce(x, ReduceOp::Mean);
    for (other, at) in [(more, 1), (narrow, 0), (mean, 0)] {
        for devices in [vec![Device::cpu(); 2], simulated(2, Profile::Discrete, 0)] {
            let errors = on_ranks(&devices, |rank| {
                let mut step = Step::new(rank.device(), |x| {
                    Ok(vec![if rank.rank() == 1 { other(&rank, &x[0])? } else { sum(&rank, &x[0])? }])
                });
                step.call(&[ones(&rank, 4).unwrap()]).map(drop).unwrap_err()
            });
            for error in errors {
                assert!(
                    matches!(&error, Error::RanksDiffer { ranks, launch, .. } if ranks == &[1] && *launch == at),
                    "{error}"
                );
            }
        }
    }
}

#[test]
fn a_digest_is_the_same_in_another_process() {
    const CHILD: &str = "REFRAIN_TEST_DIGEST";
    let device = Device::cpu();
    // Tensors that the other process does not make, so that ids differ.
    let _others =
        std::env::var_os(CHILD).map(|_| [0; 5].map(|_| Tensor::ones([1], DType::F32, &device).unwrap()));
    let model = Model::new(&device, 100);
    let mut step = Step::new(&device, |x| Ok(vec![model.train(&x[0], &x[1])?]));
    step.call(&batch(0, 2, &device)).unwrap();
    let digest = format!("{:?}", step.program().unwrap().digest());
    step.finish().unwrap();
    if std::env::var_os(CHILD).is_some() {
        println!("digest {digest}");
        return;
    }
    let mut child = std::process::Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "a_digest_is_the_same_in_another_process", "--nocapture"]).env(CHILD, "1");
    let said = String::from_utf8(child.output().unwrap().stdout).unwrap();
    assert!(said.contains(&format!("digest {digest}")), "{digest}: {said}");
}

/// A transport between the threads of this program, in which a rank may lie.
struct Table {
    size: usize,
    given: Mutex<Vec<(String, Vec<u8>)>>,
    changed: Condvar,
    /// How many answers are missing.
    lacking: usize,
    /// How many bytes are missing in each answer from the second exchange on.
    cut: usize,
}

impl Table {
    fn new(size: usize, lacking: usize, cut: usize) -> Arc<Table> {
        Arc::new(Table { size, given: Mutex::default(), changed: Condvar::new(), lacking, cut })
    }
}

/// The place of a rank at the table.
struct Place(Arc<Table>, usize, Mutex<usize>);

impl HostTransport for Place {
    fn exchange(&self, what: &str, bytes: &[u8]) -> std::result::Result<Vec<Vec<u8>>, String> {
        let Place(table, rank, rounds) = self;
        let mut round = rounds.lock().unwrap();
        let first = *round * table.size;
        *round += 1;
        let mut given = table.given.lock().unwrap();
        if given.len() < first + table.size {
            given.resize_with(first + table.size, Default::default);
        }
        given[first + rank] = (what.to_owned(), bytes.to_vec());
        table.changed.notify_all();
        let all = |given: &mut Vec<(String, Vec<u8>)>| {
            given[first..first + table.size].iter().any(|(w, _)| w.is_empty())
        };
        let given = table.changed.wait_while(given, all).unwrap();
        let round = &given[first..first + table.size];
        if let Some(other) = round.iter().position(|(w, _)| w != what) {
            return Err(format!("rank {rank} calls {what}, and rank {other} calls {}", round[other].0));
        }
        let cut = if first == 0 { 0 } else { table.cut };
        Ok(round[..table.size - table.lacking]
            .iter()
            .map(|(_, b)| b[..b.len().saturating_sub(cut)].to_vec())
            .collect())
    }
}

fn at_table(table: &Arc<Table>) -> Vec<Place> {
    (0..table.size).map(|rank| Place(table.clone(), rank, Mutex::new(0))).collect()
}

#[test]
fn a_transport_of_ones_own_carries_eager_and_recorded_collectives() {
    let expected = on_ranks(&vec![Device::cpu(); 3], |rank| training(&rank, false));
    for recorded in [false, true] {
        for simulates in [false, true] {
            let bits = of_ranks(at_table(&Table::new(3, 0, 0)), |place| {
                let rank = place.1;
                let device =
                    if simulates { Simulator::new(Profile::Unified).device() } else { Device::cpu() };
                training(&Communicator::over(&device, place, rank, 3).unwrap(), recorded)
            });
            assert_eq!(bits, expected);
        }
    }
}

#[test]
fn a_transport_that_fails_or_lies_is_an_error() {
    let with = |table: Arc<Table>, f: Rank| {
        of_ranks(at_table(&table), |place| {
            let rank = place.1;
            Communicator::over(&Device::cpu(), place, rank, 2).and_then(|communicator| f(&communicator))
        })
    };
    let sum: Rank = |rank| rank.all_reduce(&ones(rank, 4)?, ReduceOp::Sum).map(drop);
    let says = |results: Vec<Result<()>>, text: &str| {
        for (n, result) in results.into_iter().enumerate() {
            match result {
                Err(Error::Collective { rank, message, .. }) if rank == n => all_say(&[message], &[text]),
                other => panic!("{other:?}"),
            }
        }
    };
    assert!(with(Table::new(2, 0, 0), sum).into_iter().all(|result| result.is_ok()));
    says(with(Table::new(2, 1, 0), sum), "did not return one answer of each of 2 ranks");
    says(with(Table::new(2, 0, 3), sum), "13 bytes of rank 0 instead of 16");
    let differ: Rank = |rank| match rank.rank() {
        0 => rank.barrier(),
        _ => rank.all_gather(&ones(rank, 4)?).map(drop),
    };
    says(with(Table::new(2, 0, 0), differ), "barrier, collective 0");
    // Two who both say that they are rank 0.
    let doubled = of_ranks(at_table(&Table::new(2, 0, 0)), |place| {
        Communicator::over(&Device::cpu(), place, 0, 2).map(drop)
    });
    assert!(doubled.iter().all(|result| matches!(result, Err(Error::Collective { .. }))), "{doubled:?}");
}

#[test]
fn two_threads_of_one_rank_take_turns() {
    let sums = on_ranks(&vec![Device::cpu(); 2], |rank| {
        std::thread::scope(|scope| {
            let sum = || {
                let x = ones(&rank, 3).unwrap();
                (0..50)
                    .map(|_| rank.all_reduce(&x, ReduceOp::Sum).unwrap().to_vec::<f32>().unwrap()[2])
                    .sum::<f32>()
            };
            let threads = [scope.spawn(sum), scope.spawn(sum)];
            threads.map(|thread| thread.join().unwrap())
        })
    });
    assert_eq!(sums, [[100.0; 2]; 2]);
}

#[test]
fn what_can_not_work_is_refused_with_a_message() {
    let refused = |result: Result<()>, parts: &[&str]| match result {
        Err(
            error
            @ (Error::InvalidArgument { .. } | Error::Unsupported { .. } | Error::DeviceMismatch { .. }),
        ) => {
            all_say(&[error.to_string()], parts);
        }
        other => panic!("{other:?}"),
    };
    let made = |devices: &[Device]| Communicator::in_process(devices).map(drop);
    refused(made(&[]), &["there is no device"]);
    let gpu = Simulator::new(Profile::Discrete).device();
    refused(made(&[gpu.clone(), Device::cpu(), gpu.clone()]), &["ranks 0 and 2 are on one simulated GPU"]);
    let id = CommunicatorId::from_bytes(&[7; CommunicatorId::BYTES]).unwrap();
    assert_eq!(CommunicatorId::from_bytes(id.as_bytes()).unwrap(), id);
    refused(CommunicatorId::from_bytes(&[7; 127]).map(drop), &["127 bytes instead of 128"]);
    refused(
        Communicator::new(&gpu, &id, 0, 2).map(drop),
        &["has its memory on the host", "Communicator::over"],
    );
    refused(Communicator::new(&Device::cpu(), &id, 2, 2).map(drop), &["there is no rank 2 of 2"]);
    refused(Communicator::new(&Device::cpu(), &id, 0, 0).map(drop), &["there is no rank 0 of 0"]);

    for devices in [vec![Device::cpu()], vec![gpu.clone()]] {
        let rank = &Communicator::in_process(&devices).unwrap()[0];
        let of = |dtype| Tensor::ones([2], dtype, rank.device()).unwrap();
        let device = rank.device().name();
        for dtype in [DType::I32, DType::U8, DType::Bool] {
            refused(
                rank.all_reduce(&of(dtype), ReduceOp::Sum).map(drop),
                &["all_reduce", dtype.name(), &device],
            );
            refused(rank.all_gather(&of(dtype)).map(drop), &["all_gather", dtype.name()]);
        }
        refused(rank.all_reduce(&of(DType::I64), ReduceOp::Mean).map(drop), &["all_reduce", "i64"]);
        refused(
            rank.broadcast(&of(DType::F32), 1).map(drop),
            &["there is no rank 1; the communicator has 1 ranks"],
        );
        let scalar = Tensor::scalar(1.0f32, rank.device()).unwrap();
        refused(rank.all_gather(&scalar).map(drop), &["all_gather", "reshape it to [1]"]);
        refused(
            rank.reduce_scatter(&scalar, ReduceOp::Sum).map(drop),
            &["reduce_scatter", "reshape it to [1]"],
        );
        assert_eq!(rank.all_reduce(&scalar, ReduceOp::Sum).unwrap().to_scalar::<f32>().unwrap(), 1.0);
        let elsewhere = Tensor::ones([2], DType::F32, &Simulator::new(Profile::Unified).device()).unwrap();
        refused(rank.all_reduce(&elsewhere, ReduceOp::Sum).map(drop), &["all_reduce", "different devices"]);
        let aliased = of(DType::F32);
        let into = rank.all_gather_into(&aliased, &aliased);
        assert!(matches!(into, Err(Error::Aliased { op: "all_gather", .. })), "{into:?}");
        // Nothing of that has begun.
        assert_eq!(rank.collectives(), 1);
    }
    let three = on_ranks(&vec![Device::cpu(); 3], |rank| {
        rank.reduce_scatter(&ones(&rank, 4).unwrap(), ReduceOp::Sum).map(drop)
    });
    three.into_iter().for_each(|result| refused(result, &["4 rows, which 3 ranks can't share equally"]));
}

#[test]
fn a_communicator_can_not_be_made_while_a_step_is_recorded() {
    let device = Device::cpu();
    let mut step = Step::new(&device, |_| {
        Communicator::in_process(&[device.clone()])?;
        Ok(vec![])
    });
    let error = step.call(&[]).map(drop).unwrap_err();
    assert!(matches!(error, Error::NotRecordable { op: "communicator", .. }), "{error}");
}
