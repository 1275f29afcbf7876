//! **Seen:** code that asked for the capture status on a machine without a GPU, or of a device that cannot capture,
//! failed in the driver's library, which was not there.
//!
//! **Found here:** a question for the status that is an error, a panic, or anything but `None` where nobody captures; a
//! GPU that is not there and is not a typed error which says what is missing.

use std::cell::RefCell;

use refrain::{CaptureStatus, DType, Device, Error, Step, Tensor};

use crate::common::{devices, turn};

#[test]
fn no_device_captures_before_somebody_begins() {
    let _turn = turn();
    for device in devices() {
        assert_eq!(device.capture_status(), CaptureStatus::None);
        device.synchronize().unwrap();
    }
}

#[test]
fn a_step_under_way_is_no_capture_of_the_callers() {
    let _turn = turn();
    for device in devices() {
        let seen = RefCell::new(Vec::new());
        let mut step = Step::new(&device, |x| {
            seen.borrow_mut().push(x[0].device().capture_status());
            Ok(vec![x[0].exp()?])
        });
        step.call(&[Tensor::zeros([3], DType::F32, &device).unwrap()]).unwrap();
        step.finish().unwrap();
        assert!(seen.borrow().iter().all(|&status| status == CaptureStatus::None), "{device}");
        assert!(!seen.borrow().is_empty());
        assert_eq!(device.capture_status(), CaptureStatus::None);
    }
}

#[test]
fn a_gpu_that_is_not_there_is_a_typed_error_on_every_thread() {
    let _turn = turn();
    // No machine has so many; without a driver it is its lack that is told.
    let asked = || match Device::cuda(4096) {
        Err(Error::Unavailable { device, message }) => (device, message),
        other => panic!("{other:?}"),
    };
    let (device, message) = asked();
    assert_eq!(device, "cuda:4096");
    assert!(message.len() > 20, "{message}");
    std::thread::scope(|s| {
        let threads = [0; 4].map(|_| s.spawn(asked));
        threads.into_iter().for_each(|t| assert_eq!(t.join().unwrap().1, message));
    });
    let best = Device::best();
    assert_eq!(best.capture_status(), CaptureStatus::None);
    assert_eq!(Tensor::ones([2], DType::F32, &best).unwrap().to_vec::<f32>().unwrap(), [1.0, 1.0]);
}
