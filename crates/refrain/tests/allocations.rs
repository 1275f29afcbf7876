//! In the steady state of eager training no tensor's memory comes from the system: the pool has it
//! all. What an allocator that counts still sees are the small parts of handles and of the tape.
#![allow(unsafe_code)] // A global allocator is unsafe to implement; this one passes everything on.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};

use common::devices;
use refrain::optim::{AdamWBuffers, AdamWOptions, Segment, SegmentTable, adamw, clip_coefficient};
use refrain::{Activation, DType, Device, Result, Tensor, no_grad};

/// No part of a handle, of a launch or of the tape is as large as the smallest page of memory, and
/// no tensor of the steps below is smaller (but biases, norms and the loss).
const TENSOR_SIZED: usize = 4096;

struct Counting;

static CALLS: AtomicU64 = AtomicU64::new(0);
static LARGE: AtomicU64 = AtomicU64::new(0);
static LIVE: AtomicI64 = AtomicI64::new(0);

fn count(size: usize) {
    CALLS.fetch_add(1, Relaxed);
    LIVE.fetch_add(size as i64, Relaxed);
    if size >= TENSOR_SIZED {
        LARGE.fetch_add(1, Relaxed);
    }
}

// SAFETY: everything is passed on to the system's allocator unchanged.
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
        let x = o.linear(wo, None, Activation::None, Some(&x))?;
        let f =
            x.linear(w1, None, Activation::GeluTanh, None)?.linear(w2, None, Activation::None, Some(&x))?;
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

/// One test, so that nothing else allocates meanwhile.
#[test]
fn a_steady_training_step_takes_no_tensor_memory_from_the_system() {
    for device in devices() {
        for dtype in [DType::F32, DType::BF16] {
            let model = Model::new(dtype, &device).unwrap();
            let length = (TOKENS + 1) * WIDTH / 2;
            let values: Vec<f64> = (0..BATCH * length).map(|i| ((i * 7) % 23) as f64 / 23.0).collect();
            let series = common::tensor(&values, [BATCH, length], dtype, &device);
            let target = Tensor::full([BATCH, 1], 0.7, dtype, &device).unwrap();
            let mut losses = vec![0.0; 60];
            let losses = &mut losses[..];
            // Until the pool, the threads' working memory and the allocator's own tables are warm.
            for loss in &mut losses[..20] {
                *loss = loss_of(&model.step(&series, &target).unwrap());
            }
            let before = (device.stats(), CALLS.load(Relaxed), LARGE.load(Relaxed), LIVE.load(Relaxed));
            let mut lives = [0i64; 40];
            for (loss, live) in losses[20..].iter_mut().zip(&mut lives) {
                *loss = loss_of(&model.step(&series, &target).unwrap());
                *live = LIVE.load(Relaxed);
            }
            let after = (device.stats(), CALLS.load(Relaxed), LARGE.load(Relaxed), LIVE.load(Relaxed));
            let steps = 40;
            assert_eq!(after.0.system_allocations, before.0.system_allocations, "the pool grew in {dtype}");
            assert_eq!(after.0.live_bytes, before.0.live_bytes, "tensors stayed alive in {dtype}");
            assert_eq!(after.0.pooled_bytes, before.0.pooled_bytes);
            // A thread's working memory grows when, late by chance, its first task of a kind comes: a few
            // times at most. One allocation a step would be 40.
            assert!(
                after.2 - before.2 < steps / 8,
                "{} allocations of {TENSOR_SIZED} bytes and more in {steps} steps in {dtype}",
                after.2 - before.2
            );
            // Apart from such growth, host memory stays: the thread pool's queues grow and shrink by a
            // block now and then.
            let jumps: i64 =
                lives.windows(2).map(|w| w[1] - w[0]).filter(|&j| j >= TENSOR_SIZED as i64).sum();
            let grown = lives[39] - lives[0] - jumps;
            assert!(grown < 4096, "host memory grew by {grown} bytes: {lives:?}");
            assert!(losses.iter().all(|l| l.is_finite()) && losses[59] < losses[0], "{losses:?}");
            println!(
                "{dtype}: {} launches, {} storages, {:.1} small host allocations a step",
                (after.0.launches - before.0.launches) / steps,
                (after.0.allocations - before.0.allocations) / steps,
                (after.1 - before.1) as f64 / steps as f64
            );
        }
    }
    // The check itself: a vector of that size is seen.
    let seen = LARGE.load(Relaxed);
    drop(std::hint::black_box(vec![1u8; TENSOR_SIZED]));
    assert_eq!(LARGE.load(Relaxed), seen + 1);
}

fn loss_of(t: &Tensor) -> f64 {
    // Without the vectors of `common::values`.
    match t.dtype() {
        DType::BF16 => t.to_scalar::<refrain::bf16>().unwrap().to_f64(),
        _ => t.to_scalar::<f32>().unwrap() as f64,
    }
}
