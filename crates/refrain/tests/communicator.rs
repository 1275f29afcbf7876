//! What collectives between threads give, on the CPU and on simulated GPUs with both kinds of memory.

mod common;

use common::ranks::{Table, at_table, groups, of_ranks, on_ranks, ones, simulated};
use common::training::{Model, batch};
use common::{tensor, values, vector};
use refrain::{Communicator, DType, Device, Profile, ReduceOp, Result, Simulator, Step, Tensor, bf16};

/// The dtypes of collectives.
const DTYPES: [DType; 5] = [DType::F64, DType::F32, DType::F16, DType::BF16, DType::I64];

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
