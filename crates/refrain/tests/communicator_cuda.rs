//! Collectives between GPUs, one process each. Without any of the variables of a launcher it does nothing but say so; with only
//! some of them it fails.
//!
//! On a machine with two GPUs:
//!
//! ```sh
//! export NCCL_NVLS_ENABLE=0 WORLD_SIZE=2 REFRAIN_COMMUNICATOR_ID=/tmp/refrain-id.$$
//! for r in 0 1; do RANK=$r LOCAL_RANK=$r tests/refrain/communicator_cuda --nocapture > rank$r.txt 2>&1 & done; wait
//! ```
//!
//! `NCCL_RUNTIME_CONNECT=1 NCCL_ALGO="allreduce:ring;broadcast:tree"` lets NCCL make connections at a first use, also in a capture,
//! where it can't. With it, the test of a collective that NCCL refuses runs, and the other one does not.

mod common;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use common::{tensor, values};
use refrain::{
    Communicator, CommunicatorId, CommunicatorOptions, CudaReport, DType, Device, Error, ReduceOp, Result,
    Step, Tensor,
};

const DTYPES: [DType; 5] = [DType::F64, DType::F32, DType::F16, DType::BF16, DType::I64];

/// What the launcher says.
struct Job {
    rank: usize,
    size: usize,
    device: Device,
    /// Where rank 0 writes ids for the others.
    file: PathBuf,
}

fn number(name: &str) -> Option<usize> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|error| panic!("{name} is {text:?}: {error}")))
}

/// `None` if this is not one of several processes with GPUs.
fn job() -> Option<Job> {
    const NEEDED: [&str; 3] = ["RANK", "WORLD_SIZE", "REFRAIN_COMMUNICATOR_ID"];
    let missing: Vec<_> = NEEDED.into_iter().filter(|name| std::env::var_os(name).is_none()).collect();
    if missing.len() == NEEDED.len() {
        return None;
    }
    assert!(missing.is_empty(), "half a job: {missing:?} missing; set all of {NEEDED:?}, or none");
    let (rank, size) = (number("RANK")?, number("WORLD_SIZE")?);
    let file = std::env::var_os("REFRAIN_COMMUNICATOR_ID")?.into();
    assert!(size >= 2 && rank < size, "rank {rank} of {size}: at least two processes are needed");
    assert_eq!(
        std::env::var("NCCL_NVLS_ENABLE").as_deref(),
        Ok("0"),
        "multicast must stay off: set NCCL_NVLS_ENABLE=0"
    );
    let device = Device::cuda(number("LOCAL_RANK").unwrap_or(rank)).unwrap();
    Some(Job { rank, size, device, file })
}

impl Job {
    /// The `n`-th communicator: rank 0 writes its id to a file, the others wait for it.
    fn communicator(&self, n: usize) -> Communicator {
        let file = self.file.with_extension(n.to_string());
        let id = match self.rank {
            0 => {
                let id = CommunicatorId::new().unwrap();
                let part = file.with_extension("part");
                std::fs::write(&part, id.as_bytes()).unwrap();
                std::fs::rename(&part, &file).unwrap();
                id
            }
            _ => {
                let begin = Instant::now();
                while !file.exists() {
                    assert!(
                        begin.elapsed() < Duration::from_secs(60),
                        "rank 0 has written no id to {}",
                        file.display()
                    );
                    std::thread::sleep(Duration::from_millis(5));
                }
                CommunicatorId::from_bytes(&std::fs::read(&file).unwrap()).unwrap()
            }
        };
        let options = CommunicatorOptions::new().time_limit(Duration::from_secs(60));
        let made = Communicator::with_options(&self.device, &id, self.rank, self.size, options).unwrap();
        if self.rank == 0 {
            std::fs::remove_file(&file).unwrap();
        }
        made
    }
}

/// Whole numbers that all dtypes hold, also their sums over 8 ranks.
fn whole(rank: usize, n: usize) -> Vec<f64> {
    (0..n).map(|i| ((3 * i + 5 * rank) % 13) as f64 - 6.0).collect()
}

/// Numbers whose sums are rounded.
fn rounded(rank: usize, n: usize) -> Vec<f64> {
    (0..n).map(|i| ((i * 7919 + rank * 104_729) % 1_000_003) as f64 / 999.0 - 400.0).collect()
}

type Call<'a> = &'a dyn Fn(&Tensor) -> Result<Tensor>;

/// Runs a collective eagerly and in a recorded step, and compares with what its definition says.
fn check(name: &str, x: &Tensor, expected: &[f64], call: Call<'_>) {
    assert_eq!(values(&call(x).unwrap()), expected, "{name} {}", x.dtype());
    let mut step = Step::new(x.device(), |x| Ok(vec![call(&x[0])?]));
    for replay in 0..3 {
        let y = step.call(&[x.clone()]).unwrap().copy(0).unwrap();
        assert_eq!(values(&y), expected, "{name} {}, replay {replay}", x.dtype());
    }
    step.finish().unwrap();
}

fn every_collective(job: &Job, c: &Communicator) {
    let (rank, size) = (job.rank, job.size);
    for dtype in DTYPES {
        let n = 1000 * size;
        let x = tensor(&whole(rank, n), [n], dtype, &job.device);
        let sum: Vec<f64> = (0..n).map(|i| (0..size).map(|rank| whole(rank, n)[i]).sum()).collect();
        let all: Vec<f64> = (0..size).flat_map(|rank| whole(rank, n)).collect();
        check("all_reduce", &x, &sum, &|x| c.all_reduce(x, ReduceOp::Sum));
        check("broadcast", &x, &whole(size - 1, n), &|x| c.broadcast(x, size - 1));
        check("all_gather", &x, &all, &|x| c.all_gather(x));
        let part = &sum[rank * 1000..(rank + 1) * 1000];
        check("reduce_scatter", &x, part, &|x| c.reduce_scatter(x, ReduceOp::Sum));
        if dtype.is_float() {
            let mean: Vec<f64> = sum.iter().map(|s| s * 2.0).collect();
            let scaled = x.mul_scalar(2.0 * size as f64).unwrap();
            check("mean", &scaled, &mean, &|x| c.all_reduce(x, ReduceOp::Mean));
            check("mean of parts", &scaled, &mean[rank * 1000..(rank + 1) * 1000], &|x| {
                c.reduce_scatter(x, ReduceOp::Mean)
            });
        }
        // In place, on a part of a larger tensor, and as views.
        let whole_x = x.copy().unwrap();
        c.all_reduce_assign(&whole_x.narrow(0, 8, n - 16).unwrap(), ReduceOp::Sum).unwrap();
        let mut expected = whole(rank, n);
        expected[8..n - 8].copy_from_slice(&sum[8..n - 8]);
        assert_eq!(values(&whole_x), expected, "in place, {dtype}");
        c.broadcast_assign(&whole_x, 0).unwrap();
        expected[..8].copy_from_slice(&whole(0, n)[..8]);
        expected[n - 8..].copy_from_slice(&whole(0, n)[n - 8..]);
        assert_eq!(values(&whole_x), expected, "broadcast in place, {dtype}");
        let empty = Tensor::zeros([0, 2], dtype, &job.device).unwrap();
        assert_eq!(c.all_reduce(&empty, ReduceOp::Sum).unwrap().dims(), [0, 2]);
    }
    c.barrier().unwrap();
    println!("rank {rank}: every collective in every dtype, eager and recorded");
}

/// Bits of sums: eager twice, recorded twice, of all sizes; all ranks must have the same.
fn sums_repeat(job: &Job, c: &Communicator) {
    for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
        for n in [1usize, 1000, 100_003, 1 << 20, 22_000_000] {
            let n = if dtype == DType::F32 { n } else { n.min(1 << 20) };
            let x = tensor(&rounded(job.rank, n), [n], dtype, &job.device);
            let sum = |x: &Tensor| c.all_reduce(x, ReduceOp::Sum);
            let eager = sum(&x).unwrap();
            let same = |what: &str, y: &Tensor| {
                let differ = y.ne(&eager).unwrap().to_dtype(DType::I64).unwrap().sum(()).unwrap();
                assert_eq!(differ.to_scalar::<i64>().unwrap(), 0, "{what}, {n} {dtype}");
            };
            same("eager again", &sum(&x).unwrap());
            let mut step = Step::new(&job.device, |x| Ok(vec![sum(&x[0])?]));
            for _ in 0..2 {
                same("recorded", &step.call(&[x.clone()]).unwrap().copy(0).unwrap());
            }
            step.finish().unwrap();
            same("that of rank 0", &c.broadcast(&eager, 0).unwrap());
        }
    }
    println!("rank {}: sums repeat bit for bit, eager and recorded, on all ranks", job.rank);
}

/// A training step whose all-reduces run beside other work gives the same bits eager and recorded.
fn training(job: &Job, c: &Communicator) {
    let run = |recorded: bool| -> Vec<u32> {
        let device = &job.device;
        let n = 256;
        let init = |seed: usize| {
            let v: Vec<f64> = rounded(seed, n * n).iter().map(|v| v / 8000.0).collect();
            tensor(&v, [n, n], DType::F32, device)
        };
        let weights = [10, 11, 12].map(init);
        let gradients = weights.each_ref().map(|w| w.zeros_like().unwrap());
        for (w, g) in weights.iter().zip(&gradients) {
            w.set_requires_grad(true).unwrap();
            w.set_grad(g).unwrap();
        }
        let one = |x: &[Tensor]| -> Result<Vec<Tensor>> {
            let mut h = x[0].clone();
            for w in &weights {
                h = h.matmul(w)?.tanh()?;
            }
            let loss = h.square()?.mean(())?;
            loss.backward()?;
            for (w, g) in weights.iter().zip(&gradients).rev() {
                c.all_reduce_assign(g, ReduceOp::Mean)?;
                refrain::no_grad(|| w.sub_into(&g.mul_scalar(0.1)?, w))?;
                g.fill(0.0)?;
            }
            Ok(vec![c.all_reduce(&loss.detach().reshape([1])?, ReduceOp::Mean)?])
        };
        let x: Vec<f64> = rounded(job.rank, 64 * n).iter().map(|v| v / 400.0).collect();
        let x = [tensor(&x, [64, n], DType::F32, device)];
        let mut step = Step::new(device, |x| Ok(one(x)?));
        let mut bits = Vec::new();
        for _ in 0..20 {
            let loss: f32 = match recorded {
                true => step.call(&x).unwrap().to_scalar(0).unwrap(),
                false => one(&x).unwrap()[0].to_scalar().unwrap(),
            };
            bits.push(loss.to_bits());
        }
        step.finish().unwrap();
        weights
            .iter()
            .for_each(|w| bits.extend(w.detach().to_vec::<f32>().unwrap().into_iter().map(f32::to_bits)));
        bits
    };
    let eager = run(false);
    assert!(eager[19] != eager[0], "the loss does not move");
    assert_eq!(eager, run(true), "recorded");
    assert_eq!(eager, run(true), "recorded again");
    println!("rank {}: 20 steps, eager and recorded twice: the same bits", job.rank);
}

/// Nobody has used the communicator before the capture.
fn first_in_a_step(job: &Job, c: &Communicator) {
    let x = tensor(&whole(job.rank, 1000), [1000], DType::F32, &job.device);
    let sum: Vec<f64> = (0..1000).map(|i| (0..job.size).map(|rank| whole(rank, 1000)[i]).sum()).collect();
    let mut step = Step::new(&job.device, |x| {
        let sum = c.all_reduce(&x[0], ReduceOp::Sum)?;
        Ok(vec![c.all_reduce(&sum, ReduceOp::Mean)?])
    });
    for replay in 0..3 {
        let y = step.call(&[x.clone()]).unwrap().copy(0).unwrap();
        assert_eq!(values(&y), sum, "replay {replay}");
    }
    let before = c.collectives();
    step.profile(&[x.clone()], 2).unwrap();
    assert_eq!(c.collectives() - before, 4, "those of a profile");
    step.finish().unwrap();
}

/// Rank 1 records another step.
fn different_steps(job: &Job, c: &Communicator) {
    let factor = if job.rank == 1 { 3.0 } else { 2.0 };
    let x = Tensor::ones([4], DType::F32, &job.device).unwrap();
    let mut step =
        Step::new(&job.device, |x| Ok(vec![c.all_reduce(&x[0].exp()?.mul_scalar(factor)?, ReduceOp::Sum)?]));
    match step.call(&[x]).map(drop) {
        Err(Error::RanksDiffer { ranks, launch: 0, message }) => {
            assert_eq!(ranks, [1]);
            println!("rank {}: a difference is found: {message}", job.rank);
        }
        other => panic!("{other:?}"),
    }
}

/// Microseconds for an all-reduce of `n` f32: eager, and captured many times in one graph.
fn times(job: &Job, c: &Communicator, n: usize) {
    const IN_GRAPH: usize = 20;
    const RUNS: usize = 50;
    let x = tensor(&vec![0.0; n], [n], DType::F32, &job.device);
    let time = |run: &mut dyn FnMut(), calls: usize| {
        run();
        let mut each: Vec<f64> = (0..RUNS)
            .map(|_| {
                c.barrier().unwrap();
                let begin = Instant::now();
                run();
                job.device.synchronize().unwrap();
                begin.elapsed().as_secs_f64() * 1e6 / calls as f64
            })
            .collect();
        each.sort_by(f64::total_cmp);
        each[RUNS / 2]
    };
    let mut eager = || (0..IN_GRAPH).for_each(|_| c.all_reduce_assign(&x, ReduceOp::Sum).unwrap());
    let eager = time(&mut eager, IN_GRAPH);
    let mut step = Step::new(&job.device, |_| {
        (0..IN_GRAPH).try_for_each(|_| c.all_reduce_assign(&x, ReduceOp::Sum))?;
        Ok(vec![])
    });
    let captured = time(&mut || _ = step.call(&[]).unwrap(), IN_GRAPH);
    step.finish().unwrap();
    println!(
        "rank {}: all-reduce of {:.3} MB: {captured:.1} us captured, {eager:.1} us eager (medians of {RUNS} runs of {IN_GRAPH})",
        job.rank,
        n as f64 * 4e-6
    );
}

/// Rank 1 leaves a collective out; a watchdog of rank 0 aborts. Eager, and in a graph.
fn abort(job: &Job, n: usize, recorded: bool) {
    let c = job.communicator(n);
    let x = Tensor::ones([1 << 20], DType::F32, &job.device).unwrap();
    let mut step = Step::new(&job.device, |_| {
        c.all_reduce_assign(&x, ReduceOp::Sum)?;
        Ok(vec![])
    });
    if recorded {
        step.call(&[]).unwrap();
        job.device.synchronize().unwrap();
    }
    if job.rank != 0 {
        // Long enough for rank 0 to give up.
        std::thread::sleep(Duration::from_secs(4));
        step.finish().unwrap();
        c.abort("rank 0 has aborted");
        return;
    }
    let watchdog = {
        let c = c.clone();
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_secs(1));
            let begin = Instant::now();
            c.abort("rank 1 does not move");
            assert!(begin.elapsed() < Duration::from_millis(100), "abort waits");
        })
    };
    let begin = Instant::now();
    match recorded {
        true => _ = step.call(&[]).unwrap(),
        false => c.all_reduce_assign(&x, ReduceOp::Sum).unwrap(),
    }
    let waited = job.device.synchronize();
    let took = begin.elapsed();
    assert!(
        matches!(&waited, Err(Error::Collective { rank: 0, message, .. }) if message.contains("rank 1 does not move")),
        "{waited:?}"
    );
    assert!(took > Duration::from_millis(900) && took < Duration::from_secs(3), "{took:?}");
    // Told once; collectives fail from now on; the device works.
    job.device.synchronize().unwrap();
    let later = if recorded { step.call(&[]).map(drop) } else { c.barrier() };
    assert!(matches!(later, Err(Error::Collective { .. })), "{later:?}");
    common::assert_usable(&job.device);
    watchdog.join().unwrap();
    step.finish().unwrap();
    println!(
        "rank 0: {} all-reduce ended {took:.2?} after it began",
        if recorded { "a captured" } else { "an eager" }
    );
}

/// Whether NCCL was told to make connections at a first use.
fn connects_late() -> bool {
    std::env::var("NCCL_RUNTIME_CONNECT").is_ok_and(|value| value != "0")
}

#[test]
fn a_collective_that_nccl_refuses_is_an_error_and_ends_the_communicator() {
    let Some(job) = job().filter(|_| connects_late()) else {
        eprintln!("SKIPPED: it needs a job of processes with GPUs, and NCCL_RUNTIME_CONNECT=1");
        return;
    };
    let c = job.communicator(0);
    let x = Tensor::ones([1 << 20], DType::F32, &job.device).unwrap();
    let mut step = Step::new(&job.device, |_| {
        c.all_reduce_assign(&x, ReduceOp::Sum)?;
        c.broadcast_assign(&x, 0)?;
        Ok(vec![c.all_gather(&x)?])
    });
    let refused = step.call(&[]).map(drop);
    assert!(matches!(&refused, Err(Error::Collective { .. })), "{refused:?}");
    println!("rank {}: {refused:?}", job.rank);
    let later = c.barrier();
    assert!(
        matches!(&later, Err(Error::Collective { message, .. }) if message.contains("refused an earlier collective")),
        "{later:?}"
    );
    drop(step);
    drop(c);
    common::assert_usable(&job.device);
    println!("rank {}: done", job.rank);
}

#[test]
fn gpus_exchange_values_through_nccl() {
    if connects_late() {
        eprintln!("SKIPPED gpus_exchange_values_through_nccl: NCCL_RUNTIME_CONNECT is set");
        return;
    }
    let Some(job) = job() else {
        let report = CudaReport::new();
        eprintln!(
            "SKIPPED gpus_exchange_values_through_nccl: it needs two GPUs ({} here), NCCL ({}) and, in a process for each GPU, RANK, WORLD_SIZE, LOCAL_RANK and REFRAIN_COMMUNICATOR_ID",
            report.devices.len(),
            report.nccl.unwrap_or_else(|missing| missing)
        );
        return;
    };
    println!("rank {} of {} on {}, NCCL {:?}", job.rank, job.size, job.device, CudaReport::new().nccl);
    let c = job.communicator(0);
    assert_eq!((c.rank(), c.size()), (job.rank, job.size));
    first_in_a_step(&job, &c);
    every_collective(&job, &c);
    sums_repeat(&job, &c);
    training(&job, &c);
    different_steps(&job, &c);
    for n in [1000, 100_000, 600_000, 4_000_000, 22_000_000] {
        times(&job, &c, n);
    }
    let live = job.device.stats().live_bytes;
    drop(c);
    abort(&job, 1, false);
    abort(&job, 2, true);
    // After aborted ones, a new one works.
    let c = job.communicator(3);
    every_collective(&job, &c);
    println!(
        "rank {}: done, {live} bytes live before the aborts, {} after",
        job.rank,
        job.device.stats().live_bytes
    );
}
