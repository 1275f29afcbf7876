//! Helpers for the tests of operations. The unit tests of the library include this file, too.

#[path = "../../../refrain-test/src/devices.rs"]
mod list;
#[path = "../../../refrain-test/src/sanitizer.rs"]
mod sanitizer;

pub(crate) use list::devices;
pub(crate) use sanitizer::{gradcheck, sanitized, shortened};

use refrain::{DType, Device, DeviceKind, Tensor};

/// Checks sums. Those of the CPU equal `in_order`; those of a GPU have another order, but always the same one.
#[track_caller]
pub(crate) fn assert_sums(
    sums: impl Fn() -> Vec<f32>,
    in_order: &[f32],
    exact: &[f64],
    tolerance: f64,
    device: &Device,
) {
    let first = sums();
    if device.kind() != DeviceKind::Cuda {
        assert_eq!(first, in_order);
    }
    let wide: Vec<f64> = first.iter().map(|&s| f64::from(s)).collect();
    assert_close(&wide, exact, tolerance);
    let bits = |sums: Vec<f32>| sums.into_iter().map(f32::to_bits).collect::<Vec<_>>();
    assert_eq!(bits(sums()), bits(first), "two runs differ");
}

/// Numbers from -1 to 2.4 without a pattern.
pub(crate) fn numbers(n: usize) -> Vec<f64> {
    (0..n).map(|i| (i as f64 * 0.618_033_988_75 + 0.1).fract() * 3.0 - 1.0 + (i % 5) as f64 * 0.1).collect()
}

/// The same numbers as an f64 tensor that requires a gradient.
pub(crate) fn leaf(shape: &[usize], device: &Device) -> Tensor {
    let t = Tensor::from_slice(&numbers(shape.iter().product()), shape, device).unwrap();
    t.set_requires_grad(true).unwrap();
    t
}

/// The values of a float tensor of any dtype.
pub(crate) fn values(t: &Tensor) -> Vec<f64> {
    t.detach().to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap()
}

/// Checks that each pair differs by at most `tolerance`. NaN is close only to NaN.
#[track_caller]
pub(crate) fn assert_close(a: &[f64], b: &[f64], tolerance: f64) {
    assert_eq!(a.len(), b.len());
    for (i, (a, b)) in a.iter().zip(b).enumerate() {
        let close = a == b || (a - b).abs() <= tolerance || a.is_nan() && b.is_nan();
        assert!(close, "element {i}: {a} and {b}");
    }
}

/// So many words of Philox 4x32-10 from a block on: what generators make their numbers of.
pub(crate) fn random_words(seed: u64, block: u64, count: usize) -> Vec<u32> {
    let blocks = (0..count.div_ceil(4) as u64).map(|i| block.wrapping_add(i));
    let words = blocks.flat_map(|block| {
        let mut c = [block as u32, (block >> 32) as u32, 0, 0];
        let (mut low, mut high) = (seed as u32, (seed >> 32) as u32);
        for _ in 0..10 {
            let a = u64::from(c[0]) * 0xd251_1f53;
            let b = u64::from(c[2]) * 0xcd9e_8d57;
            c = [(b >> 32) as u32 ^ c[1] ^ low, b as u32, (a >> 32) as u32 ^ c[3] ^ high, a as u32];
            (low, high) = (low.wrapping_add(0x9e37_79b9), high.wrapping_add(0xbb67_ae85));
        }
        c
    });
    words.take(count).collect()
}
