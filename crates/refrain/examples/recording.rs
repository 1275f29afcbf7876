//! The cost of recording a long step: `cargo run --release -p refrain --example recording -- cpu 2000 100000` for
//! chains of 2,000 and 100,000 operations with their backward pass, run eagerly and as a recorded step.
//!
//! Bytes are host memory per launch: the peak of the eager pass, the peak of the first call of the step, and the
//! memory that the step keeps.
#![allow(unsafe_code)] // A global allocator is unsafe to implement; this one passes everything on.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Instant;

use refrain::{DType, Device, Result, Step, Tensor};

struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is forwarded unchanged to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let live = LIVE.fetch_add(layout.size(), Relaxed) + layout.size();
        PEAK.fetch_max(live, Relaxed);
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, address: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Relaxed);
        unsafe { System.dealloc(address, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A chain of operations with its backward pass.
fn chain(x: &Tensor, operations: usize) -> Result<()> {
    let mut y = x.clone();
    for _ in 0..operations {
        y = y.tanh()?;
    }
    y.sum(())?.backward()
}

/// Runs `f`; returns its time in seconds, its peak memory in bytes, and the bytes still allocated after it.
fn cost(device: &Device, f: &mut dyn FnMut() -> Result<()>) -> Result<(f64, usize, usize)> {
    let before = LIVE.load(Relaxed);
    PEAK.store(before, Relaxed);
    let begun = Instant::now();
    f()?;
    device.synchronize()?;
    let seconds = begun.elapsed().as_secs_f64();
    Ok((seconds, PEAK.load(Relaxed) - before, LIVE.load(Relaxed).saturating_sub(before)))
}

fn measure(device: &Device, operations: usize) -> Result<()> {
    let x = Tensor::full([8], 0.5, DType::F32, device)?;
    x.set_requires_grad(true)?;
    x.set_grad(&x.zeros_like()?)?;
    let (eager, eager_peak, _) = cost(device, &mut || chain(&x, operations))?;
    let mut step = Step::new(device, |_| Ok(chain(&x, operations).map(|()| vec![])?));
    let (first, peak, kept) = cost(device, &mut || step.call(&[]).map(drop))?;
    // The second call also records the closure again, as a check.
    step.call(&[])?;
    let (again, ..) = cost(device, &mut || step.call(&[]).map(drop))?;
    let launches = step.program().map_or(1, |p| p.launch_count());
    let [eager_peak, peak, kept] = [eager_peak, peak, kept].map(|bytes| bytes / launches);
    step.check()?;
    let (dropped, ..) = cost(device, &mut || {
        drop(std::mem::replace(&mut step, Step::new(device, |_| Ok(vec![]))));
        Ok(())
    })?;
    println!(
        "| {operations} | {launches} | {eager:.3} | {first:.3} | {again:.3} | {dropped:.3} | {eager_peak} | {peak} | {kept} |"
    );
    Ok(())
}

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let device: Device = arguments.next().as_deref().unwrap_or("cpu").parse()?;
    println!(
        "{device}\n| operations | launches | eager s | first call s | replay s | drop s | eager peak | first call's peak | kept |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- | --- | --- |");
    let sizes: Vec<usize> = arguments.filter_map(|n| n.parse().ok()).collect();
    sizes.into_iter().try_for_each(|operations| measure(&device, operations))
}
