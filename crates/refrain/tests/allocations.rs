//! Eager training in the steady state on the CPU allocates nothing: the tensors' memory comes from the pool, and
//! handles, tape nodes and workspace are reused. A replay of a recorded step does not even create handles, and does
//! not call the closure.
//!
//! The main thread is the test harness's and does not count: it allocates while the test runs, such as to report after a
//! minute that the test is slow.
#![allow(unsafe_code)] // A global allocator is unsafe to implement; this one passes everything on.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use refrain::optim::{AdamWBuffers, AdamWOptions, Segment, SegmentTable, adamw, clip_coefficient};
use refrain::{Activation, DType, Device, Generator, Interpolation, PadMode, Result, Step, Tensor, no_grad};

struct Counting;

static CALLS: AtomicU64 = AtomicU64::new(0);
static LIVE: AtomicI64 = AtomicI64::new(0);
static HAS_BEGUN: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// Whether the allocations of this thread count: whether its first one came after the test had begun.
    static COUNTS: Cell<Option<bool>> = const { Cell::new(None) };
}

/// The calling thread, and those that allocate nothing before now, count from here on.
fn begin_to_count() {
    HAS_BEGUN.store(true, Relaxed);
    COUNTS.set(Some(true));
}

fn count(size: usize) {
    LIVE.fetch_add(size as i64, Relaxed);
    let counts = COUNTS.get().unwrap_or_else(|| HAS_BEGUN.load(Relaxed));
    COUNTS.set(Some(counts));
    if counts {
        CALLS.fetch_add(1, Relaxed);
    }
}

// SAFETY: every call is forwarded unchanged to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, address: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size() as i64, Relaxed);
        unsafe { System.dealloc(address, layout) }
    }

    unsafe fn realloc(&self, address: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        LIVE.fetch_sub(layout.size() as i64, Relaxed);
        count(size);
        unsafe { System.realloc(address, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const BATCH: usize = 16;
const TOKENS: usize = 12;
const WIDTH: usize = 64;
const SHAPES: [&[usize]; 8] = [
    &[WIDTH],
    &[WIDTH],
    &[3 * WIDTH, WIDTH],
    &[3 * WIDTH],
    &[WIDTH, WIDTH],
    &[4 * WIDTH, WIDTH],
    &[WIDTH, 4 * WIDTH],
    &[1, WIDTH],
];

/// A transformer layer and a head: parameters, gradients and moments in a flat buffer each.
struct Model {
    parameters: Vec<Tensor>,
    /// Parameters, gradients, and both moments.
    flat: [Tensor; 4],
    step: Tensor,
    learning_rate: Tensor,
    segments: SegmentTable,
    generator: Generator,
}

impl Model {
    fn new(dtype: DType, device: &Device) -> Result<Model> {
        let sizes = SHAPES.map(|s| s.iter().product::<usize>());
        let n = sizes.iter().sum();
        let values: Vec<f64> = (0..n).map(|j| ((j * 17) % 101) as f64 / 700.0 - 0.07).collect();
        let zeros = || Tensor::zeros([n], dtype, device);
        let flat = [common::tensor(&values, [n], dtype, device), zeros()?, zeros()?, zeros()?];
        let (mut parameters, mut segments, mut offset) = (Vec::new(), Vec::new(), 0);
        for (shape, size) in SHAPES.iter().zip(sizes) {
            let part = |t: &Tensor| t.narrow(0, offset, size)?.view(*shape);
            let p = part(&flat[0])?;
            p.set_requires_grad(true)?;
            p.set_grad(&part(&flat[1])?)?;
            parameters.push(p);
            segments.push(Segment::new(offset, size));
            offset += size;
        }
        Ok(Model {
            parameters,
            flat,
            step: Tensor::zeros([1], DType::I64, device)?,
            learning_rate: Tensor::full([1], 3e-3, DType::F64, device)?,
            segments: SegmentTable::new(&segments, device)?,
            generator: Generator::new(device, 3)?,
        })
    }

    /// One step on a series whose windows are cut with `unfold`; returns the loss's handle.
    fn step(&self, series: &Tensor, target: &Tensor) -> Result<Tensor> {
        let [scale, shift, wqkv, bqkv, wo, w1, w2, head] = &self.parameters[..] else { unreachable!() };
        let x = series.unfold(1, WIDTH, WIDTH / 2)?;
        let h = x.layer_norm(scale, shift, 1e-5)?;
        let qkv = h.linear(wqkv, Some(bqkv), Activation::None, None)?;
        let part = |i: usize| {
            qkv.narrow(2, i * WIDTH, WIDTH)?.reshape([BATCH, TOKENS, 4, WIDTH / 4])?.transpose(1, 2)
        };
        let o = part(0)?.scaled_dot_product_attention(&part(1)?, &part(2)?, None, false)?;
        let o = o.transpose(1, 2)?.reshape([BATCH, TOKENS, WIDTH])?;
        let x = o.linear(wo, None, Activation::None, None)?.dropout(0.1, &self.generator)?.add(&x)?;
        let f = x.linear(w1, None, Activation::GeluTanh, None)?.dropout(0.1, &self.generator)?;
        let f = f.linear(w2, None, Activation::None, Some(&x))?;
        let y = f.tanh()?.mean(1)?.linear(head, None, Activation::None, None)?;
        let loss = y.mse_loss(target)?;
        loss.backward()?;
        no_grad(|| {
            let [parameters, gradients, exp_avg, exp_avg_sq] = &self.flat;
            let (_norm, gradient_scale) = clip_coefficient(gradients, 1.0)?;
            let (step, learning_rate, segments) = (&self.step, &self.learning_rate, &self.segments);
            let gradient_scale = &gradient_scale;
            let buffers = AdamWBuffers {
                parameters,
                gradients,
                exp_avg,
                exp_avg_sq,
                step,
                learning_rate,
                gradient_scale,
                segments,
            };
            adamw(AdamWOptions::default(), buffers)?;
            self.step.add_scalar_assign(1.0)
        })?;
        Ok(loss)
    }
}

/// Parameters of the operations that the transformer above does not use.
struct Others {
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    statistics: [Tensor; 2],
    ids: Tensor,
    generator: Generator,
}

impl Others {
    const SHAPE: [usize; 3] = [4, 128, 64];

    fn new(dtype: DType, device: &Device) -> Result<Others> {
        let numbers = |n: usize| (0..n).map(|i| ((i * 37) % 19) as f64 / 9.0 - 1.0).collect::<Vec<_>>();
        let n = Others::SHAPE.iter().product();
        let ids: Vec<f64> = (0..512).map(|i| ((i * 5) % 64) as f64).collect();
        let others = Others {
            x: common::tensor(&numbers(n), Others::SHAPE, dtype, device),
            weight: common::tensor(&numbers(64), [64], dtype, device),
            bias: Tensor::zeros([64], dtype, device)?,
            statistics: [Tensor::zeros([64], dtype, device)?, Tensor::ones([64], dtype, device)?],
            ids: common::tensor(&ids, [512], DType::I64, device),
            generator: Generator::new(device, 5)?,
        };
        for t in [&others.x, &others.weight, &others.bias] {
            t.set_requires_grad(true)?;
        }
        Ok(others)
    }

    fn step(&self) -> Result<Tensor> {
        let [mean, variance] = &self.statistics;
        let h = self.x.batch_norm(&self.weight, &self.bias, mean, variance, -1, true, 0.1, 1e-5)?;
        let across = h.transpose(1, 2)?;
        let h = across.batch_norm(&self.weight, &self.bias, mean, variance, 1, true, 0.1, 1e-5)?;
        let scores = h.matmul(&across.transpose(1, 2)?)?.softmax(-1)?;
        let h = scores.matmul(&h)?.transpose(1, 2)?;
        let rows = h.reshape([512, 64])?;
        let picked = rows.gather(1, &self.ids.reshape([512, 1])?)?.sub_scalar(0.1)?.abs()?.mean(())?;
        let table = rows.narrow(0, 0, 64)?.embedding(&self.ids)?.hadamard_transform()?;
        let places = self.ids.narrow(0, 0, 64)?;
        let noise = self.generator.normal([512, 64], rows.dtype())?;
        let both = Tensor::concat(&[&rows, &table.mul(&noise)?], 1)?.l2_normalize(0, 1e-6)?;
        let pair = Tensor::stack(&[&both.index_select(1, &places)?, &rows], 0)?;
        let spread = pair.var(0, 1)?.mean(())?.add(&pair.var((), 1)?)?.add(&pair.max(1)?.sum(())?)?;
        let positive = rows.gt_scalar(0.0)?.where_cond(&rows, &rows.exp()?)?;
        let calm = positive.softmax(0)?.add(&positive.log_softmax(0)?)?.pad(&[(0, 0), (1, 1)], 0.0)?;
        let calm = calm.repeat(&[1, 2])?.square()?.mean(())?;
        let linear = Interpolation::Linear { align_corners: false };
        let resized = rows.pad(&[(1, 1), (2, 3)], PadMode::Circular)?.interpolate(&[50], linear)?;
        let calm = calm.add(&resized.adaptive_avg_pool2d([7, 7])?.square()?.mean(())?)?;
        let loss = rows.cross_entropy_smoothed(&self.ids, 0.1)?.add(&picked)?.add(&spread)?.add(&calm)?;
        loss.backward()?;
        no_grad(|| rows.argmax(0))?;
        Ok(loss)
    }
}

/// Values with many parts: dimensions, operands, generators.
struct Many {
    x: Tensor,
    weight: Tensor,
    index: Tensor,
    generators: Vec<Generator>,
}

impl Many {
    const SHAPE: [usize; 9] = [2, 3, 2, 1, 2, 3, 2, 2, 4];

    fn new(device: &Device) -> Result<Many> {
        let numbers = |n: usize| (0..n).map(|i| ((i * 37) % 19) as f64 / 9.0 - 1.0).collect::<Vec<_>>();
        let n = Many::SHAPE.iter().product();
        let index: Vec<f64> = (0..n).map(|i| (i % 2) as f64).collect();
        let many = Many {
            x: common::tensor(&numbers(n), Many::SHAPE, DType::F32, device),
            weight: common::tensor(&numbers(n), Many::SHAPE, DType::F32, device),
            index: common::tensor(&index, Many::SHAPE, DType::I64, device),
            generators: (0..11).map(|seed| Generator::new(device, seed)).collect::<Result<_>>()?,
        };
        many.weight.set_requires_grad(true)?;
        Ok(many)
    }

    fn step(&self, x: &Tensor) -> Result<Tensor> {
        // Elements that are adjacent in one are far apart in the other, along every axis.
        let reversed = self.weight.permute(&[0, 5, 6, 3, 7, 1, 2, 4, 8])?;
        let turned = x.permute(&[2, 1, 0, 3, 4, 5, 7, 6, 8])?;
        let h =
            reversed.mul(&turned.tanh()?)?.add(&x.narrow(0, 0, 1)?)?.permute(&[0, 5, 6, 3, 7, 1, 2, 4, 8])?;
        let h = x.gt_scalar(0.0)?.where_cond(&h.contiguous()?, x)?;
        let picked = h.gather(2, &self.index)?.scatter_add(4, &self.index, &h)?;
        let mut padding = [(0, 0); 9];
        padding[2] = (1, 1);
        let padded = picked
            .pad(&padding, 0.0)?
            .pad(&padding, PadMode::Reflect)?
            .narrow(2, 1, 4)?
            .repeat(&[1, 1, 1, 1, 2, 1, 1, 1, 1])?;
        let product = padded.matmul(&padded.transpose(7, 8)?)?.softmax(-1)?;
        let mut parts = Vec::new();
        for generator in &self.generators {
            let noise =
                generator.uniform([3, 4], DType::F32)?.add(&product.mean([0, 2, 4, 6, 7, 8])?.sum(())?)?;
            (0..6).for_each(|_| parts.push(noise.clone()));
        }
        let parts: Vec<&Tensor> = parts.iter().collect();
        let wide = Tensor::concat(&parts, 1)?
            .add(&Tensor::concat(&parts[..44], 1)?.repeat(&[1, 3])?.narrow(1, 0, 264)?)?;
        let loss = wide.square()?.mean(())?.add(&Tensor::stack(&parts, 0)?.mean(())?)?;
        loss.backward()?;
        Ok(loss)
    }
}

/// Runs a step until it is steady, then counts the allocations of 40 steps.
fn check(what: &str, device: &Device, step: impl Fn() -> Result<Tensor>) {
    // Until the pool, the threads' working memory and the free lists are warm.
    (0..20).for_each(|_| assert!(loss_of(&step().unwrap()).is_finite(), "{what}"));
    assert_eq!(count_steps(what, device, &step), 0, "allocations in {STEPS} steps: {what}");
}

const STEPS: usize = 40;

/// The allocations in some steps.
fn count_steps(what: &str, device: &Device, step: impl Fn() -> Result<Tensor>) -> u64 {
    let read = || [CALLS.load(Relaxed), LIVE.load(Relaxed) as u64];
    let mut losses = [0.0; STEPS];
    let (stats, [calls, live]) = (device.stats(), read());
    for loss in &mut losses {
        *loss = loss_of(&step().unwrap());
    }
    let [calls_after, live_after] = read();
    let after = device.stats();
    let launches = after.launches - stats.launches;
    let calls = calls_after - calls;
    assert_eq!(after.system_allocations, stats.system_allocations, "the pool grew: {what}");
    assert_eq!(after.live_bytes, stats.live_bytes, "tensors stayed alive: {what}");
    assert_eq!(after.pooled_bytes, stats.pooled_bytes, "{what}");
    let grown = live_after as i64 - live as i64;
    assert!(calls > 0 || grown == 0, "host memory grew by {grown} bytes: {what}");
    assert!(losses.iter().all(|l| l.is_finite()), "{what}: {losses:?}");
    println!(
        "{what}: {} launches and {} storages a step, {calls} allocations",
        launches / STEPS as u64,
        (after.allocations - stats.allocations) / STEPS as u64,
    );
    calls
}

/// Counts the allocations of replays of a step, without the calls that recorded the closure again as a check; prints
/// them with the time of the eager step.
fn check_replays(
    what: &str,
    device: &Device,
    eager: impl Fn(&[Tensor]) -> Result<Tensor>,
    inputs: &[Tensor],
) {
    const CALLED: usize = 120;
    let mut times = [Duration::ZERO; 2];
    for _ in 0..20 {
        let begin = Instant::now();
        loss_of(&eager(inputs).unwrap());
        times[0] = if times[0].is_zero() { begin.elapsed() } else { times[0].min(begin.elapsed()) };
    }
    let closures = Cell::new(0u64);
    let mut step = Step::new(device, |batch| {
        closures.set(closures.get() + 1);
        Ok(vec![eager(batch)?.to_dtype(DType::F32)?])
    });
    let mut replays = 0;
    for i in 0..CALLED {
        let (stats, recordings) = (device.stats(), step.recordings());
        let calls = CALLS.load(Relaxed);
        let begin = Instant::now();
        let loss = step.call(inputs).unwrap().to_scalar::<f32>(0).unwrap();
        let time = begin.elapsed();
        let calls = CALLS.load(Relaxed) - calls;
        assert!(loss.is_finite(), "{what}: {loss}");
        assert_eq!(closures.get(), step.recordings(), "{what}");
        if i < 20 || step.recordings() > recordings {
            continue;
        }
        let after = device.stats();
        assert_eq!(calls, 0, "allocations in a replay: {what}");
        assert_eq!(after.allocations, stats.allocations, "storages made in a replay: {what}");
        assert_eq!(after.live_bytes, stats.live_bytes, "{what}");
        replays += 1;
        times[1] = if times[1].is_zero() { time } else { times[1].min(time) };
    }
    // At most three of the last hundred calls check, the 20th, the 40th and the 80th or those after them.
    assert!(replays >= 97, "{replays} of the last 100 calls were replays alone: {what}");
    let program = step.program().unwrap();
    assert!(program.block_bytes() * 10 <= program.live_bytes() * 11, "{what}: {program}");
    println!(
        "{what}, recorded: {} launches, {} temporaries in {} bytes (at least {}), recorded in {:?}; fastest step {:?} eager, {:?} replayed",
        program.launch_count(),
        program.temporaries(),
        program.block_bytes(),
        program.live_bytes(),
        step.recording_time().unwrap(),
        times[0],
        times[1],
    );
    step.finish().unwrap();
}

/// A single test, so that no other test allocates at the same time.
#[test]
fn a_steady_training_step_allocates_nothing() {
    begin_to_count();
    // So many that the calls that warm up here do not use them all: a thread whose first replay or first part of a kernel
    // comes late must not allocate either.
    rayon::ThreadPoolBuilder::new().num_threads(16).build_global().unwrap();
    for device in [Device::cpu()] {
        for dtype in [DType::F32, DType::BF16] {
            let model = Model::new(dtype, &device).unwrap();
            let length = (TOKENS + 1) * WIDTH / 2;
            let values: Vec<f64> = (0..BATCH * length).map(|i| ((i * 7) % 23) as f64 / 23.0).collect();
            let series = common::tensor(&values, [BATCH, length], dtype, &device);
            let target = Tensor::full([BATCH, 1], 0.7, dtype, &device).unwrap();
            let first = loss_of(&model.step(&series, &target).unwrap());
            check(&format!("transformer in {dtype}"), &device, || model.step(&series, &target));
            let last = loss_of(&model.step(&series, &target).unwrap());
            assert!(last < first / 2.0, "the loss went from {first} to {last} in {dtype}");
            let batch = [series, target];
            let eager = |batch: &[Tensor]| model.step(&batch[0], &batch[1]);
            check_replays(&format!("transformer in {dtype}"), &device, eager, &batch);
            let others = Others::new(dtype, &device).unwrap();
            check(&format!("other operations in {dtype}"), &device, || others.step());
            check_replays(&format!("other operations in {dtype}"), &device, |_| others.step(), &[]);
        }
        let many = Many::new(&device).unwrap();
        let eager = |x: &[Tensor]| many.step(&x[0]);
        check_replays(
            "many dimensions, operands and generators",
            &device,
            eager,
            std::slice::from_ref(&many.x),
        );
    }
    // The check itself: it must see even the smallest box, on this thread and on a new one.
    let calls_of_a_box = || {
        let seen = CALLS.load(Relaxed);
        drop(std::hint::black_box(Box::new(1u8)));
        CALLS.load(Relaxed) - seen
    };
    assert_eq!(calls_of_a_box(), 1);
    assert!(std::thread::spawn(calls_of_a_box).join().unwrap() >= 1);
}

fn loss_of(t: &Tensor) -> f64 {
    // Without the vectors of `common::values`.
    match t.dtype() {
        DType::BF16 => t.to_scalar::<refrain::bf16>().unwrap().to_f64(),
        _ => t.to_scalar::<f32>().unwrap() as f64,
    }
}
