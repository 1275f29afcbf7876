//! Collectives between threads that go wrong: ranks that differ, end or do not come, and arguments that can not work.

mod common;

use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use common::ranks::{Rank, Table, all_say, at_table, broken, groups, of_ranks, on_ranks, ones, simulated};
use refrain::{
    Communicator, CommunicatorId, CommunicatorOptions, DType, Device, Error, Profile, ReduceOp, Result,
    Simulator, Step, Tensor,
};

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
