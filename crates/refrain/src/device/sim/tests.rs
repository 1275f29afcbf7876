//! Plants each fault that the design is meant to exclude in a driver, and checks what the simulator reports.

use std::cell::{Cell, RefCell};
use std::sync::{Arc, Mutex};

use super::driver::{PrivateStream, Replay, Sim};
use super::machine::Machine;
use super::{Profile, Simulator};
use crate::device::capture::{self, Capture};
use crate::device::driver::{Block, CaptureStatus, Driver};
use crate::device::launch::{Launch, Mode, Operand};
use crate::device::program::{Bound, Executable};
use crate::device::storage::Storage;
use crate::device::{Device, DeviceKind};
use crate::error::{Error, Result};
use crate::ops::optim::{Schedule, learning_rate_into};
use crate::record::simulated::seeds;
use crate::record::{Fallback, Step, StepOptions};
use crate::tensor::{DType, Tensor};

const PROFILES: [Profile; 2] = [Profile::Discrete, Profile::Unified];

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    /// The result of an operation goes to a new buffer instead of the destination.
    SwapsDestination(&'static str),
    /// The host reads without waiting.
    ReadsAtOnce,
    /// The first launch of an operation waits for nothing.
    DropsEdges(&'static str),
    /// A workspace is allocated while an operation is captured.
    AllocatesInCapture(&'static str),
    /// The buffer of the first operation's latest allocation is given to the second operation while it is still in
    /// use.
    ReusesEarly(&'static str, &'static str),
    /// Launches that advance integers are missing from the graph.
    FreezesCounters,
}

/// The driver of the simulator with a planted fault.
struct Planted {
    sim: Sim,
    fault: Fault,
    /// The same machine behind a driver without faults.
    same: Device,
    /// Allocated blocks, each with the operation that asked for it.
    blocks: Mutex<Vec<(&'static str, usize)>>,
}

fn planted(fault: Fault, profile: Profile) -> Device {
    planted_in(fault, Simulator::new(profile))
}

fn planted_in(fault: Fault, simulator: Simulator) -> Device {
    let machine = Arc::new(Machine::new(simulator));
    let same = Device::from_driver(DeviceKind::Sim, Arc::new(Sim::new(machine.clone())));
    let planted = Planted { sim: Sim::new(machine), fault, same, blocks: Mutex::default() };
    Device::from_driver(DeviceKind::Sim, Arc::new(planted))
}

impl Driver for Planted {
    fn name(&self) -> String {
        self.sim.name()
    }

    fn alloc(&self, op: &'static str, bytes: usize) -> Result<Block> {
        let mut blocks = self.blocks.lock().unwrap();
        if let Fault::ReusesEarly(saved, by) = self.fault
            && op == by
            && let Some((_, address)) = blocks.iter().rev().find(|(o, _)| *o == saved)
        {
            return Ok(Block { address: *address, bytes });
        }
        let block = self.sim.alloc(op, bytes)?;
        blocks.push((op, block.address));
        Ok(block)
    }

    fn free(&self, block: Block) {
        self.sim.free(block);
    }

    fn trim(&self) -> usize {
        self.sim.trim()
    }

    fn pooled_bytes(&self) -> usize {
        self.sim.pooled_bytes()
    }

    fn system_allocations(&self) -> u64 {
        self.sim.system_allocations()
    }

    fn upload(&self, op: &'static str, from: &[u8], to: &Block, offset: usize) -> Result<()> {
        self.sim.upload(op, from, to, offset)
    }

    fn download(&self, op: &'static str, from: &Block, offset: usize, to: &mut [u8]) -> Result<()> {
        match self.fault {
            Fault::ReadsAtOnce => self.sim.machine.read(op, from.address + offset, to),
            _ => self.sim.download(op, from, offset, to),
        }
    }

    fn synchronize(&self) -> Result<()> {
        self.sim.synchronize()
    }

    fn capture_status(&self) -> CaptureStatus {
        self.sim.capture_status()
    }

    fn launch(&self, launch: &Launch<'_>) -> Result<()> {
        if self.fault != Fault::SwapsDestination(launch.op) {
            return self.sim.launch(launch);
        }
        let (first, mode) = &launch.writes[0];
        let storage = Storage::new(launch.op, &self.same, first.storage.bytes())?;
        let elsewhere = (Operand { storage: &storage, ..*first }, *mode);
        let writes: Vec<(Operand<'_>, Mode)> =
            [elsewhere].into_iter().chain(launch.writes[1..].iter().copied()).collect();
        self.sim.launch(&Launch { writes: &writes, ..*launch })
    }

    fn compile(&self, program: &Bound<'_>) -> Result<Box<dyn Executable>> {
        let stream = Faulty {
            stream: PrivateStream::begin(&self.sim.machine)?,
            planted: self,
            waits: RefCell::default(),
            first: Cell::new(true),
        };
        capture::program(&stream, program)?;
        Ok(Box::new(Replay { machine: self.sim.machine.clone(), graph: stream.stream.end()? }))
    }
}

/// A capture with a planted fault.
struct Faulty<'a> {
    stream: PrivateStream<'a>,
    planted: &'a Planted,
    waits: RefCell<Vec<usize>>,
    first: Cell<bool>,
}

impl Capture for Faulty<'_> {
    type Node = usize;

    fn depend(&self, nodes: &mut [usize]) -> Result<()> {
        self.waits.replace(nodes.to_vec());
        self.stream.depend(nodes)
    }

    fn dependencies(&self) -> Result<Vec<usize>> {
        self.stream.dependencies()
    }

    fn launch(&self, launch: &Launch<'_>) -> Result<()> {
        match self.planted.fault {
            Fault::FreezesCounters if launch.writes[0].0.dtype == DType::I64 => return Ok(()),
            Fault::AllocatesInCapture(op) if op == launch.op => {
                self.planted.sim.machine.alloc(op, 1000)?;
            }
            Fault::DropsEdges(op) if op == launch.op && self.first.replace(false) => {
                self.stream.depend(&mut [])?;
            }
            _ => {}
        }
        self.stream.launch(launch)
    }
}

fn vector(values: &[f32], device: &Device) -> Tensor {
    Tensor::from_slice(values, [values.len()], device).unwrap()
}

#[track_caller]
fn assert_found<T: std::fmt::Debug>(result: Result<T>, what: &[&str]) {
    match result {
        Err(e @ Error::Hazard { .. }) => {
            let text = e.to_string();
            what.iter().for_each(|w| assert!(text.contains(w), "{w} is not in: {text}"));
        }
        other => panic!("not found: {other:?}"),
    }
}

#[test]
fn a_result_that_went_elsewhere_is_found_as_its_destination_is_read() {
    for profile in PROFILES {
        let device = planted(Fault::SwapsDestination("add"), profile);
        let x = vector(&[1.0, 2.0], &device);
        let y = x.add(&x).unwrap();
        assert_found(
            y.to_vec::<f32>(),
            &["to_vec", "bytes 0..8 of memory that add allocated", "wrote elsewhere"],
        );
        assert_found(y.exp(), &["exp", "nothing has written"]);
        // Into a buffer with values, where only the caller's own comparison would notice.
        x.add_into(&x, &x).unwrap();
        assert_eq!(x.to_vec::<f32>().unwrap(), [1.0, 2.0]);
    }
}

#[test]
fn a_host_read_that_did_not_wait_is_found_however_early_the_work_ran() {
    for profile in PROFILES {
        for seed in 0..seeds() {
            let device = planted_in(Fault::ReadsAtOnce, Simulator::new(profile).seed(seed));
            let x = vector(&[1.0, 2.0], &device);
            let y = x.exp().unwrap();
            assert_found(y.to_vec::<f32>(), &["writes, and has not waited for it", "the edge exp -> to_vec"]);
            device.synchronize().unwrap();
            assert_eq!(y.to_vec::<f32>().unwrap()[0], 1.0f32.exp());
        }
    }
}

#[test]
fn a_lost_edge_between_branches_is_found_as_the_graph_is_made() {
    for profile in PROFILES {
        let device = planted(Fault::DropsEdges("add"), profile);
        let x = vector(&[1.0, 2.0], &device);
        let mut step = Step::new(&device, |x| Ok(vec![x[0].exp()?.add(&x[0].square()?)?]));
        let result = step.call(&[x]).map(drop);
        assert_found(result, &["launch 2 (add) reads", "which launch 1 (square) writes", "the edge 1 -> 2"]);
    }
}

#[test]
fn an_allocation_in_a_capture_is_an_error_or_the_hang_that_it_would_be() {
    for profile in PROFILES {
        let device = planted(Fault::AllocatesInCapture("square"), profile);
        let x = vector(&[1.0, 2.0], &device);
        let mut step = Step::new(&device, |x| Ok(vec![x[0].exp()?.square()?]));
        let live = device.stats().live_bytes;
        let result = step.call(&[x.clone()]).map(drop);
        match profile {
            Profile::Unified => assert_found(result, &["square allocates memory while a graph is", "a hang"]),
            Profile::Discrete => {
                let error = result.unwrap_err();
                assert!(matches!(error, Error::Device { op: "square", .. }), "{error}");
                assert!(error.to_string().contains("square allocates memory while a graph is"), "{error}");
            }
        }
        assert_eq!(device.stats().live_bytes, live);
        assert_eq!(x.exp().unwrap().to_vec::<f32>().unwrap()[0], 1.0f32.exp());
    }
}

#[test]
fn a_saved_buffer_that_is_handed_out_again_is_found_at_its_next_use() {
    for profile in PROFILES {
        let device = planted(Fault::ReusesEarly("exp", "sin"), profile);
        let x = vector(&[1.0, 2.0], &device);
        x.set_requires_grad(true).unwrap();
        let y = x.exp().unwrap(); // Saved for the backward pass.
        assert_found(
            x.detach().sin(),
            &["sin", "whose memory exp also uses", "handed out again while somebody still needed it"],
        );
        // The second owner has freed the buffer, so a use by the first owner is a use after free.
        assert_found(
            y.sum(()).and_then(|y| y.backward()),
            &["memory that exp allocated and that was freed before: a use after free"],
        );
        drop(y);
        assert_found(device.synchronize(), &["freed that was not allocated, or that was freed before"]);
    }
}

/// The sum of the learning rates of three steps.
fn schedule(device: &Device, recorded: bool) -> f64 {
    let schedule = Schedule::Warmup { lr: 1.0, warmup_steps: 4, start_factor: 0.0 };
    let step = Tensor::zeros([1], DType::I64, device).unwrap();
    let rate = Tensor::zeros([1], DType::F64, device).unwrap();
    let sum = Tensor::zeros([1], DType::F64, device).unwrap();
    let one = || -> Result<()> {
        learning_rate_into(schedule, &step, &rate)?;
        sum.add_assign(&rate)?;
        step.add_scalar_assign(1.0)
    };
    let mut replayed = Step::new(device, |_| {
        one()?;
        Ok(vec![])
    });
    for _ in 0..3 {
        if recorded { replayed.call(&[]).map(drop) } else { one() }.unwrap();
    }
    sum.to_scalar().unwrap()
}

#[test]
fn a_step_counter_that_stands_still_is_found_by_comparing_with_eager_steps() {
    let healthy = Simulator::new(Profile::Discrete).device();
    let frozen = planted(Fault::FreezesCounters, Profile::Discrete);
    assert_eq!(schedule(&healthy, false), 0.75);
    assert_eq!(schedule(&healthy, true), 0.75);
    assert_eq!(schedule(&frozen, true), 0.0);
}

/// A small step with everything that allocates: results, saved values, gradients, a recorded block.
fn work(device: &Device) -> Result<f32> {
    let w = Tensor::from_slice(&[0.5f32, -1.0, 2.0, 1.5], [2, 2], device)?;
    w.set_requires_grad(true)?;
    w.set_grad(&w.detach().zeros_like()?)?;
    let x = Tensor::ones([3, 2], DType::F32, device)?;
    let mut step = Step::new(device, |x| {
        let loss = x[0].matmul(&w)?.tanh()?.square()?.sum(())?;
        loss.backward()?;
        Ok(vec![loss])
    });
    let loss = step.call(&[x])?.to_scalar(0)?;
    step.finish()?;
    Ok(loss)
}

#[test]
fn every_allocation_that_fails_is_a_typed_error_that_leaves_nothing_behind() {
    let expected = work(&Device::cpu()).unwrap().to_bits();
    for profile in PROFILES {
        let mut failures = 0;
        for n in 1.. {
            let device = Simulator::new(profile).out_of_memory_at(n).device();
            match work(&device) {
                Ok(loss) => {
                    assert_eq!(loss.to_bits(), expected);
                    break;
                }
                Err(Error::OutOfMemory { .. }) => failures += 1,
                Err(e) => panic!("allocation {n}: {e}"),
            }
            // The device keeps workspaces.
            let live = device.stats().live_bytes;
            assert!(live <= 1 << 20, "allocation {n}: {live} bytes are lost");
            assert_eq!(work(&device).unwrap().to_bits(), expected, "after allocation {n}");
            assert_eq!(device.stats().live_bytes, live, "allocation {n}");
        }
        assert!(failures >= 5, "{failures}");
    }
}

#[test]
fn memory_has_the_size_that_was_asked_for() {
    let device = Simulator::new(Profile::Discrete).memory(10_000).device();
    let kept = Tensor::zeros([1000], DType::F32, &device).unwrap();
    match Tensor::zeros([2000], DType::F32, &device) {
        Err(Error::OutOfMemory { requested: 8000, live: 4000, free: Some(6000), .. }) => {}
        other => panic!("{other:?}"),
    }
    drop(kept);
    Tensor::zeros([2000], DType::F32, &device).unwrap();
}

#[test]
fn a_launch_that_fails_is_named_and_the_device_goes_on() {
    for n in 1.. {
        let device = Simulator::new(Profile::Discrete).fail_launch(n).device();
        match work(&device) {
            Ok(_) => {
                assert!(n > 3, "{n}");
                break;
            }
            Err(Error::Device { message, .. }) => assert!(message.contains(&format!("launch {n} fails"))),
            Err(e) => panic!("launch {n}: {e}"),
        }
        work(&device).unwrap();
    }
}

#[test]
fn a_lost_device_tells_every_later_call_what_failed_first() {
    let device = Simulator::new(Profile::Unified).lose_at_launch(2).device();
    let x = vector(&[1.0, 2.0], &device);
    x.exp().unwrap();
    let y = x.square();
    let results = [y.map(drop), x.to_vec::<f32>().map(drop), x.sin().map(drop), device.synchronize()];
    let lost = |e: &Error| matches!(e, Error::DeviceLost { cause, .. } if cause.contains("it was square"));
    for (i, result) in results.into_iter().enumerate() {
        match result {
            Ok(()) => assert_eq!(i, 0),
            Err(e) => assert!(lost(&e), "{e}"),
        }
    }
    assert!(work(&device).is_err_and(|e| lost(&e)));
    drop(x);
    assert!(work(&Device::cpu()).is_ok());
}

#[test]
fn an_invalidated_capture_is_told_with_its_operation_and_all_is_given_back() {
    for n in 1.. {
        let device = Simulator::new(Profile::Discrete).invalidate_capture_at(n).device();
        match work(&device) {
            Ok(_) => {
                assert!(n > 3, "{n}");
                break;
            }
            Err(Error::Device { op, message, .. }) => {
                let told = format!(
                    "invalidated: at captured launch {n}, as the simulator was configured; it was {op}"
                );
                assert!(
                    message.starts_with("the driver refused it while a step was captured: "),
                    "{message}"
                );
                assert!(message.contains(&told), "{op}: {message}");
            }
            Err(e) => panic!("captured launch {n}: {e}"),
        }
        assert!(device.stats().live_bytes <= 1 << 20);
        assert_eq!(device.capture_status(), CaptureStatus::None);
        work(&device).unwrap();
    }
}

#[test]
fn where_the_driver_refuses_a_graph_the_step_runs_eagerly_if_told_so() {
    let device = Simulator::new(Profile::Discrete).invalidate_capture_at(1).device();
    let total = Tensor::zeros([2], DType::F32, &device).unwrap();
    let calls = std::cell::Cell::new(0);
    let options = StepOptions::new().fallback(Fallback::Eager);
    let mut step = Step::with_options(&device, options, |x| {
        calls.set(calls.get() + 1);
        total.add_assign(&x[0].square()?)?;
        Ok(vec![total.sum(())?])
    });
    let x = vector(&[1.0, 2.0], &device);
    for i in 1..=3 {
        assert_eq!(step.call(&[x.clone()]).unwrap().to_scalar::<f32>(0).unwrap(), 5.0 * i as f32);
        assert!(matches!(step.refusal(), Some(Error::Device { .. })));
        assert!(step.program().is_none());
    }
    // Recorded twice, and run eagerly at each call.
    assert_eq!(calls.get(), 5);
    assert!(step.profile(&[x.clone()], 1).is_err());
    // With other shapes it is captured as usual.
    let one = vector(&[3.0], &device);
    assert_eq!(step.call(&[one]).unwrap().to_scalar::<f32>(0).unwrap(), 15.0 + 2.0 * 9.0);
    assert!(step.refusal().is_none() && step.program().is_some());
    step.finish().unwrap();
}

#[test]
fn a_capture_by_hand_meets_the_rules_below_the_engine() {
    for profile in PROFILES {
        let (device, stream) = Simulator::new(profile).device_and_stream();
        let x = vector(&[1.0, 2.0], &device);
        let machine = &stream.machine;
        assert!(stream.end_capture().is_err_and(|e| e.to_string().contains("does not capture")));

        // What the engine's guard would have refused breaks the capture.
        stream.begin_capture().unwrap();
        assert!(stream.begin_capture().is_err_and(|e| e.to_string().contains("capturing already")));
        assert!(machine.alloc("exp", 8).is_err());
        assert_eq!(device.capture_status(), CaptureStatus::Invalidated);
        assert!(x.fill(1.0).is_err_and(|e| e.to_string().contains("invalidated: exp allocates memory")));
        assert!(stream.end_capture().is_err_and(|e| e.to_string().contains("invalidated: exp allocates")));

        stream.begin_capture().unwrap();
        let uploaded = machine.upload("from_slice", &[0; 8], x.storage().block().address);
        let text = uploaded.unwrap_err().to_string();
        assert!(text.contains("from_slice copies from the host while a graph is being captured"), "{text}");
        assert!(stream.end_capture().is_err());

        // A branch that the end of the capture does not wait for.
        stream.begin_capture().unwrap();
        x.fill(1.0).unwrap();
        machine.set_dependencies("fork", super::machine::Stream::DEVICE, &[]).unwrap();
        let error = stream.end_capture().map(drop).unwrap_err().to_string();
        assert!(error.contains("launch 0 (fill) is on a branch that nothing joins"), "{error}");

        // A graph does not keep its memory and can outlive it.
        stream.begin_capture().unwrap();
        x.mul_scalar_into(2.0, &x).unwrap();
        let graph = stream.end_capture().unwrap();
        stream.launch(&graph).unwrap();
        assert_eq!(x.to_vec::<f32>().unwrap(), [2.0, 4.0]);
        drop(x);
        assert_found(stream.launch(&graph), &["a use after free"]);
    }
}

#[test]
fn memory_is_poisoned_when_it_is_made_and_when_it_is_given_back() {
    for profile in PROFILES {
        let device = Simulator::new(profile).device();
        // The second time in the memory of the first.
        for value in [1.0, 2.0] {
            let x = Tensor::empty("test", &[2, 2].into(), DType::F32, &device).unwrap();
            assert_found(x.to_vec::<f32>(), &["bytes 0..16 of memory that test allocated"]);
            x.narrow(1, 0, 1).unwrap().fill(value).unwrap();
            let read = x.view([4]).unwrap().narrow(0, 0, 3).unwrap().to_vec::<f32>().unwrap();
            assert!(read[0] == value as f32 && read[1].is_nan() && read[2] == value as f32, "{read:?}");
            x.fill(value).unwrap();
        }
    }
}
