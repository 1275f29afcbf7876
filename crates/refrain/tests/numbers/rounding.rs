//! What becomes f16 or bf16 is rounded once, to nearest, ties to even, whatever it comes from.

use refrain::{DType, Device, Tensor, bf16, f16};

use crate::common::{devices, values};

/// The finite numbers of a narrow dtype from 0 on, in order: that at place `i` has the bits `i`, so it is even if `i` is.
fn finite(dtype: DType) -> Vec<f64> {
    let of = |bits: u16| match dtype {
        DType::F16 => f16::from_bits(bits).to_f64(),
        _ => bf16::from_bits(bits).to_f64(),
    };
    (0..=u16::MAX).map(of).take_while(|v| v.is_finite()).collect()
}

/// Numbers and what they become: those halfway between two neighbours, and a little to either side of them.
fn ties(dtype: DType, little: impl Fn(f64, f64) -> Vec<f64>) -> Vec<(f64, f64)> {
    let numbers = finite(dtype);
    let (last, before) = (numbers[numbers.len() - 1], numbers[numbers.len() - 2]);
    let mut all = Vec::new();
    for i in 0..numbers.len() {
        let low = numbers[i];
        // Beyond the last one as if there were another, which is infinite.
        let high = numbers.get(i + 1).copied().unwrap_or(last + (last - before));
        let above = if i + 1 < numbers.len() { high } else { f64::INFINITY };
        let middle = low + (high - low) / 2.0;
        all.push((middle, if i % 2 == 0 { low } else { above }));
        for off in little(middle, high - low) {
            all.extend([(middle - off, low), (middle + off, above)]);
        }
    }
    all.into_iter().flat_map(|(x, y)| [(x, y), (-x, -y)]).collect()
}

const NARROW: [DType; 2] = [DType::F16, DType::BF16];

#[track_caller]
fn assert_rounded(what: &str, x: &Tensor, from: &[f64], expected: &[f64]) {
    let found = values(x);
    assert_eq!(found.len(), expected.len());
    for ((x, y), e) in from.iter().zip(&found).zip(expected) {
        assert_eq!(y.to_bits(), e.to_bits(), "{what}: {x:e} became {y:e}, not {e:e}");
    }
}

fn apart(pairs: &[(f64, f64)]) -> (Vec<f64>, Vec<f64>) {
    pairs.iter().copied().unzip()
}

#[test]
fn f64_is_rounded_once() {
    for dtype in NARROW {
        // The last bit of the number, those that f32 has not, and some that it has.
        let pairs = ties(dtype, |middle, gap| {
            let last = middle.next_up() - middle;
            [last].into_iter().chain([40, 30, 22, 12, 3].map(|n| gap / f64::from(2).powi(n))).collect()
        });
        let (from, expected) = apart(&pairs);
        for device in devices() {
            let x = Tensor::from_slice(&from, from.len(), &device).unwrap();
            assert_rounded(
                &format!("f64 to {dtype} on {device}"),
                &x.to_dtype(dtype).unwrap(),
                &from,
                &expected,
            );
        }
    }
}

#[test]
fn f32_is_rounded_once() {
    for dtype in NARROW {
        let pairs = ties(dtype, |middle, _| {
            let near = middle as f32;
            vec![f64::from(near.next_up()) - f64::from(near)]
        });
        // Away from 2^k the numbers below are as far off as those above.
        let pairs: Vec<(f64, f64)> = pairs.into_iter().filter(|(x, _)| f64::from(*x as f32) == *x).collect();
        let (from, expected) = apart(&pairs);
        let narrow: Vec<f32> = from.iter().map(|&v| v as f32).collect();
        for device in devices() {
            let x = Tensor::from_slice(&narrow, narrow.len(), &device).unwrap();
            assert_rounded(
                &format!("f32 to {dtype} on {device}"),
                &x.to_dtype(dtype).unwrap(),
                &from,
                &expected,
            );
        }
    }
}

/// What whole numbers from `from` up become: those halfway between neighbours and those beside.
fn whole(dtype: DType, most: f64) -> Vec<(i64, f64)> {
    let numbers = finite(dtype);
    let mut all = Vec::new();
    for (i, pair) in numbers.windows(2).enumerate() {
        let (low, high) = (pair[0], pair[1]);
        if high - low >= 2.0 && high < most {
            let middle = low as i64 + ((high - low) / 2.0) as i64;
            all.extend([
                (middle - 1, low),
                (middle, if i % 2 == 0 { low } else { high }),
                (middle + 1, high),
            ]);
        }
    }
    all.into_iter().flat_map(|(x, y)| [(x, y), (-x, -y)]).collect()
}

#[test]
fn integers_are_rounded_once() {
    for dtype in NARROW {
        let mut wide = whole(dtype, 2f64.powi(63));
        // The ends of i64.
        if dtype == DType::BF16 {
            wide.extend([(i64::MAX, 2f64.powi(63)), (i64::MIN, -(2f64.powi(63)))]);
        } else {
            wide.extend([(65519, 65504.0), (65520, f64::INFINITY), (i64::MIN, f64::NEG_INFINITY)]);
        }
        let narrow = whole(dtype, 2f64.powi(31));
        for device in devices() {
            let (from, expected): (Vec<i64>, Vec<f64>) = wide.iter().copied().unzip();
            let x = Tensor::from_slice(&from, from.len(), &device).unwrap().to_dtype(dtype).unwrap();
            let from: Vec<f64> = from.iter().map(|&v| v as f64).collect();
            assert_rounded(&format!("i64 to {dtype} on {device}"), &x, &from, &expected);

            let from: Vec<i32> = narrow.iter().map(|&(x, _)| x as i32).collect();
            let expected: Vec<f64> = narrow.iter().map(|&(_, y)| y).collect();
            let x = Tensor::from_slice(&from, from.len(), &device).unwrap().to_dtype(dtype).unwrap();
            let from: Vec<f64> = from.iter().map(|&v| f64::from(v)).collect();
            assert_rounded(&format!("i32 to {dtype} on {device}"), &x, &from, &expected);
        }
    }
}

/// Numbers of the host that two roundings, or one that misses their last bits, bring to the wrong side.
const HARD: [(DType, f64, f64); 6] = [
    (DType::BF16, 1.0 + 1.0 / 256.0 + 1.0 / 4_194_304.0, 1.0078125),
    (DType::BF16, 1.0 + 1.0 / 256.0, 1.0),
    (DType::BF16, 1.0 + 3.0 / 256.0 - 1.0 / 1_099_511_627_776.0, 1.0078125),
    (DType::F16, 0.573_486_346_154_751_4, 0.573_730_468_75),
    (DType::F16, 1.0 + 1.0 / 2048.0 + 1.0 / 1_099_511_627_776.0, 1.0009765625),
    (DType::F16, 65520.0 - 1.0 / 1_048_576.0, 65504.0),
];

#[test]
fn numbers_of_the_host_are_rounded_once_wherever_they_go() {
    type Way = fn(f64, DType, &Device) -> refrain::Result<Tensor>;
    let ways: [(&str, Way); 9] = [
        ("full", |v, dtype, device| Tensor::full((), v, dtype, device)),
        ("fill", |v, dtype, device| {
            let t = Tensor::zeros([3, 2], dtype, device)?;
            t.narrow(1, 0, 1)?.fill(v)?;
            t.narrow(1, 0, 1)?.copy()
        }),
        ("arange", |v, dtype, device| Tensor::arange(v, v + 1e-6, 1.0, dtype, device)),
        ("pad", |v, dtype, device| Tensor::zeros([0], dtype, device)?.pad(&[(1, 2)], v)),
        ("add_scalar", |v, dtype, device| Tensor::zeros([5], dtype, device)?.add_scalar(v)),
        ("scalar_sub", |v, dtype, device| Tensor::zeros([5], dtype, device)?.scalar_sub(v)),
        ("mul_scalar", |v, dtype, device| Tensor::ones([5], dtype, device)?.mul_scalar(v)),
        ("clamp", |v, dtype, device| Tensor::zeros([5], dtype, device)?.clamp(v, 1e9)),
        ("add_scalar_assign", |v, dtype, device| {
            let t = Tensor::zeros([5], dtype, device)?;
            t.add_scalar_assign(v)?;
            Ok(t)
        }),
    ];
    for device in devices() {
        for (dtype, number, expected) in HARD {
            for sign in [1.0, -1.0] {
                for (name, way) in ways {
                    if name == "clamp" && sign < 0.0 {
                        continue;
                    }
                    let found = values(&way(sign * number, dtype, &device).unwrap());
                    assert!(
                        !found.is_empty() && found.iter().all(|&v| v == sign * expected),
                        "{name} of {} in {dtype} on {device}: {found:?}",
                        sign * number
                    );
                }
            }
        }
    }
}
