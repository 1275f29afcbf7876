//! cuBLASLt takes longer to load than a small model to train for an epoch. So it is loaded by the first product that it computes.

mod common;

use common::devices;
use refrain::{CudaReport, DType, Device, DeviceKind, Generator, Result, Step, Tensor};

/// Whether the library is in this process.
fn is_loaded() -> bool {
    std::fs::read_to_string("/proc/self/maps").unwrap().contains("libcublasLt")
}

fn square(n: usize, dtype: DType, device: &Device) -> Result<Tensor> {
    let x = Generator::new(device, 1)?.normal([n, n], DType::F32)?.to_dtype(dtype)?;
    x.matmul(&x)
}

#[test]
fn small_products_and_those_of_f32_do_not_load_the_library() {
    for device in devices().filter(|device| device.kind() == DeviceKind::Cuda) {
        let x = square(1024, DType::F32, &device).unwrap();
        let small = square(256, DType::BF16, &device).unwrap();
        let mut step = Step::new(&device, |_| Ok(vec![x.matmul(&x)?, small.matmul(&small)?]));
        step.call(&[]).unwrap();
        step.finish().unwrap();
        assert!(!is_loaded(), "nobody needs it yet");
        let large = square(1024, DType::BF16, &device).unwrap();
        assert_eq!(large.dims(), [1024, 1024]);
        // The report loads it.
        let was_loaded = is_loaded();
        assert_eq!(was_loaded, CudaReport::new().cublaslt.is_ok());
    }
}
