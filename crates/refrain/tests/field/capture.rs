//! **Seen:** memory was allocated, or a weight uploaded, during the capture of a graph. On most GPUs this was an
//! error that broke the capture; on one with unified memory it hung silently.
//!
//! **Found here:** on a stream that the caller lends and captures, an allocation, a transfer or a wait that does not
//! return a typed error within a second, that disturbs the capture, or that leaves the stream unusable; memory that
//! is freed while the graph still needs it; in a recorded step, an allocation or a host copy during a replay.
#![allow(unsafe_code)] // Captures graphs with NVIDIA's driver.

use std::slice::from_ref;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use cudarc::driver::{result, sys};
use refrain::{CaptureStatus, DType, Device, DeviceKind, Error, SimStream, Simulator, Step, Tensor};

use crate::common::{devices, turn, values};

/// A stream that the test captures.
#[derive(Clone, Copy)]
enum Stream<'a> {
    Cuda(sys::CUstream),
    Sim(&'a SimStream),
}

/// Calls `test` with a device on a stream that can capture: for each simulated GPU, and for the first GPU if there is
/// one.
fn on_lent_streams(test: impl Fn(Stream<'_>, &Device)) {
    let _turn = turn();
    let devices: Vec<Device> = devices().collect();
    for name in devices.iter().filter(|d| d.kind() == DeviceKind::Sim).map(Device::name) {
        let (device, stream) = name.parse::<Simulator>().unwrap().device_and_stream();
        test(Stream::Sim(&stream), &device);
    }
    if let Some(gpu) = devices.iter().find(|d| d.kind() == DeviceKind::Cuda) {
        let (stream, device) = crate::stream::lent(gpu);
        test(Stream::Cuda(stream), &device);
    }
}

impl Stream<'_> {
    fn begin(self, mode: sys::CUstreamCaptureMode) {
        match self {
            // SAFETY: the stream is valid.
            Stream::Cuda(stream) => unsafe { result::stream::begin_capture(stream, mode) }.unwrap(),
            Stream::Sim(stream) => stream.begin_capture().unwrap(),
        }
    }

    /// Ends a capture and launches the graph `times` times.
    fn replay(self, times: usize) {
        match self {
            // SAFETY: the stream is valid and captures; what the graph uses lives in the test that calls this.
            Stream::Cuda(stream) => unsafe {
                let graph = result::stream::end_capture(stream).unwrap();
                let mut program = std::ptr::null_mut();
                sys::cuGraphInstantiateWithFlags(&mut program, graph, 0).result().unwrap();
                for _ in 0..times {
                    result::graph::launch(program, stream).unwrap();
                }
                result::stream::synchronize(stream).unwrap();
                result::graph::exec_destroy(program).unwrap();
                result::graph::destroy(graph).unwrap();
            },
            Stream::Sim(stream) => {
                let graph = stream.end_capture().unwrap();
                (0..times).for_each(|_| stream.launch(&graph).unwrap());
                stream.synchronize().unwrap();
            }
        }
    }

    /// Makes a call that is forbidden during a capture: the driver refuses it and invalidates the capture.
    fn break_capture(self) {
        match self {
            // SAFETY: the stream is valid.
            Stream::Cuda(stream) => drop(unsafe { result::stream::synchronize(stream) }.unwrap_err()),
            Stream::Sim(stream) => drop(stream.synchronize().unwrap_err()),
        }
    }

    /// Ends a capture that was invalidated.
    fn end_broken(self) {
        match self {
            // SAFETY: the stream is valid.
            Stream::Cuda(stream) => drop(unsafe { result::stream::end_capture(stream) }.unwrap_err()),
            Stream::Sim(stream) => drop(stream.end_capture().map(drop).unwrap_err()),
        }
    }
}

/// Fails if `f` takes longer than a second, which means that it hangs.
fn at_once<T: Send>(f: impl FnOnce() -> T + Send) -> T {
    let (done, wait) = mpsc::channel();
    std::thread::scope(|s| {
        s.spawn(move || {
            let began = Instant::now();
            let result = f();
            done.send((began.elapsed(), result)).unwrap();
        });
        let (took, result) = wait.recv_timeout(Duration::from_secs(20)).expect("a hang");
        assert!(took < Duration::from_secs(1), "took {took:?}");
        result
    })
}

#[track_caller]
fn assert_refused<T>(result: refrain::Result<T>, what: &str) {
    match result {
        Err(Error::CaptureIncompatible { operation, device }) => {
            assert!(operation.contains(what), "{operation}");
            assert!(device == "cuda:0" || device.starts_with("sim"), "{device}");
        }
        Err(e) => panic!("{e}"),
        Ok(_) => panic!("{what} was not refused"),
    }
}

#[test]
fn allocation_and_transfers_during_a_capture_are_refused_at_once_and_the_capture_goes_on() {
    on_lent_streams(|stream, device| {
        use sys::CUstreamCaptureMode::*;
        for mode in [
            CU_STREAM_CAPTURE_MODE_GLOBAL,
            CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
            CU_STREAM_CAPTURE_MODE_RELAXED,
        ] {
            let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], [2, 2], device).unwrap();
            let total = Tensor::zeros([2, 2], DType::F32, device).unwrap();
            let row = Tensor::zeros([2], DType::F32, device).unwrap();
            let step = || {
                x.mul_scalar_into(2.0, &total)?;
                total.add_into(&x, &total)?;
                total.sum_into(0, &row)
            };
            // Compiles the kernels and makes the workspace.
            step().unwrap();
            row.fill(0.0).unwrap();
            device.synchronize().unwrap();

            stream.begin(mode);
            assert_eq!(device.capture_status(), CaptureStatus::Active);
            at_once(|| {
                let before = device.stats();
                assert_refused(Tensor::zeros([8], DType::F32, device), "zeros");
                assert_refused(x.exp(), "exp");
                assert_refused(Tensor::from_slice(&[1.0f32], [1], device), "from_slice");
                assert_refused(x.write_from(&[0.0f32; 4]), "write_from");
                assert_refused(x.write_pieces(|_, _| Ok(())), "write_pieces");
                assert_refused(x.to_vec::<f32>(), "to_vec");
                assert_refused(row.narrow(0, 0, 1).unwrap().to_scalar::<f32>(), "to_scalar");
                assert_refused(device.synchronize(), "synchronize");
                assert_eq!(device.stats().allocations, before.allocations);
            });
            assert_eq!(device.capture_status(), CaptureStatus::Active, "the capture was disturbed");
            step().unwrap();
            stream.replay(3);

            assert_eq!(device.capture_status(), CaptureStatus::None);
            assert_eq!(values(&total), [3.0, 6.0, 9.0, 12.0]);
            assert_eq!(values(&row), [12.0, 18.0]);
            assert_eq!(values(&x.exp().unwrap().log().unwrap().round().unwrap()), [1.0, 2.0, 3.0, 4.0]);
        }
    });
}

#[test]
fn memory_dropped_during_a_capture_is_freed_after_it() {
    on_lent_streams(|stream, device| {
        let x = Tensor::ones([1 << 20], DType::F32, device).unwrap();
        let y = Tensor::zeros([1 << 20], DType::F32, device).unwrap();
        let scratch = Tensor::zeros([1 << 20], DType::F32, device).unwrap();
        x.add_into(&x, &scratch).unwrap();
        scratch.add_into(&x, &y).unwrap();
        y.fill(0.0).unwrap();
        device.synchronize().unwrap();
        stream.begin(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
        x.add_into(&x, &scratch).unwrap();
        scratch.add_into(&x, &y).unwrap();
        let kept = scratch.clone();
        drop(scratch);
        let loose = device.stats().live_bytes;
        drop(kept);
        assert_eq!(device.stats().live_bytes, loose - (4 << 20));
        stream.replay(1);
        // The graph still owned the memory of the dropped tensor while it ran.
        assert!(values(&y).iter().all(|&v| v == 3.0));
        let again = Tensor::zeros([1 << 20], DType::F32, device).unwrap();
        assert_eq!(values(&again.narrow(0, 0, 2).unwrap()), [0.0, 0.0]);
    });
}

#[test]
fn an_invalidated_capture_is_told_and_the_stream_is_of_use_after_it() {
    on_lent_streams(|stream, device| {
        let x = Tensor::ones([4], DType::F32, device).unwrap();
        device.synchronize().unwrap();
        stream.begin(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED);
        stream.break_capture();
        assert_eq!(device.capture_status(), CaptureStatus::Invalidated);
        at_once(|| assert_refused(x.exp(), "exp"));
        stream.end_broken();
        assert_eq!(device.capture_status(), CaptureStatus::None);
        assert_eq!(values(&x.add(&x).unwrap()), [2.0; 4]);
    });
}

#[test]
fn an_index_out_of_range_in_a_graph_is_told_after_each_replay() {
    on_lent_streams(|stream, device| {
        let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0], [3], device).unwrap();
        let index = Tensor::from_slice(&[2i64, 0], [2], device).unwrap();
        let y = Tensor::zeros([2], DType::F32, device).unwrap();
        let pick = || x.gather_into(0, &index, &y);
        pick().unwrap();
        index.write_from(&[0i64, 9]).unwrap();
        device.synchronize().unwrap();
        for _ in 0..2 {
            stream.begin(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
            pick().unwrap();
            stream.replay(2);
            let error = device.synchronize().unwrap_err();
            assert!(matches!(error, Error::InvalidArgument { op: "gather", .. }), "{error}");
            assert!(error.to_string().contains("index 9 "), "{error}");
            // Reported once for all replays before.
            let picked = values(&y);
            if device.kind() == DeviceKind::Cuda {
                assert!(error.to_string().contains("is out of range for an axis of size 3"), "{error}");
                assert!(picked[0] == 1.0 && picked[1].is_nan(), "{picked:?}");
            }
        }
        index.write_from(&[1i64, 2]).unwrap();
        pick().unwrap();
        assert_eq!(values(&y), [2.0, 3.0]);
    });
}

#[test]
fn a_recorded_step_makes_tensors_without_allocating_and_refuses_the_hosts_values_at_once() {
    let _turn = turn();
    for device in devices() {
        let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], [4], &device).unwrap();
        let mut step = Step::new(&device, |x| {
            let sum = Tensor::zeros([4], DType::F32, x[0].device())?;
            sum.add_assign(&x[0].exp()?.log()?.round()?)?;
            Ok(vec![sum.add(&Tensor::ones([4], DType::F32, x[0].device())?)?])
        });
        step.call(from_ref(&x)).unwrap();
        let before = device.stats();
        for _ in 0..10 {
            step.call(from_ref(&x)).unwrap();
        }
        let after = device.stats();
        assert_eq!((after.allocations, after.uploads), (before.allocations, before.uploads), "{device}");
        let replayed = step.call(from_ref(&x)).unwrap().to_vec::<f32>(0).unwrap();
        assert_eq!(replayed, [2.0, 3.0, 4.0, 5.0], "{device}");
        step.finish().unwrap();

        let at_once = Instant::now();
        let mut uploading = Step::new(&device, |x| {
            let weight = Tensor::from_slice(&[2.0f32; 4], [4], x[0].device())?;
            Ok(vec![x[0].mul(&weight)?])
        });
        let error = uploading.call(from_ref(&x)).map(drop).unwrap_err();
        assert!(matches!(error, Error::NotRecordable { .. }), "{error}");
        assert!(at_once.elapsed() < Duration::from_secs(1));
        assert_eq!(values(&x.add(&x).unwrap()), [2.0, 4.0, 6.0, 8.0]);
    }
}
