use super::*;

#[test]
fn all_numbers_of_16_bits_convert_as_half_does() {
    for bits in 0..=u16::MAX {
        let (b, h) = (bf16::from_bits(bits), f16::from_bits(bits));
        // The crate sets a bit of a signalling NaN.
        let quiet = if b.is_nan() { 0x0040_0000 } else { 0 };
        assert_eq!(bf16_to_f32(b).to_bits() | quiet, b.to_f32_const().to_bits(), "bf16 {bits:04x}");
        assert_eq!(f16_to_f32(h).to_bits(), h.to_f32_const().to_bits(), "f16 {bits:04x}");
    }
}

/// In pairs, and what is left of them.
#[test]
fn loops_over_bf16_compute_each_number_as_half_does() {
    let all: Vec<bf16> = (0..=u16::MAX).map(bf16::from_bits).collect();
    let by = 1.1f32;
    let of = |x: bf16| bf16::from_f32_const(x.to_f32_const() * by).to_bits();
    for n in (0..70).chain([all.len() - 1]) {
        let (x, mut y) = (&all[all.len() - n..], vec![bf16::ONE; n]);
        Bf16Loops.run(|| Bf16Loops.map(x, &mut y, |x: f32| x * by));
        assert!(y.iter().zip(x).all(|(y, &x)| y.to_bits() == of(x)), "{n} numbers");
        Bf16Loops.run(|| Bf16Loops.map_both(x, &all[..n], &mut y, |a: f32, b: f32| a - b));
        let difference = |a: bf16, b: bf16| bf16::from_f32_const(a.to_f32_const() - b.to_f32_const());
        let is_right = |(y, (&a, &b)): (&bf16, (&bf16, &bf16))| {
            let of = difference(a, b);
            y.to_bits() == of.to_bits() || y.is_nan() && of.is_nan()
        };
        assert!(y.iter().zip(x.iter().zip(&all)).all(is_right), "{n} pairs");
    }
}

#[test]
fn slices_of_f16_become_numbers_of_any_type() {
    let all: Vec<f16> = (0..=u16::MAX).map(f16::from_bits).collect();
    let (mut floats, mut integers) = (vec![0.0f64; all.len() - 5], vec![0i64; all.len() - 5]);
    if widen_f16s(&all[5..], &mut floats) && widen_f16s(&all[5..], &mut integers) {
        for ((&x, &float), &integer) in all[5..].iter().zip(&floats).zip(&integers) {
            let wide = f64::from(x.to_f32_const());
            assert!(float.to_bits() == wide.to_bits() || float.is_nan() && wide.is_nan(), "{x:?}");
            assert_eq!(integer, wide as i64, "{x:?}");
        }
    }
}

/// In slices, whose conversion may be an instruction of the machine.
#[test]
fn slices_of_f16_convert_as_numbers_do() {
    let all: Vec<f16> = (0..=u16::MAX).map(f16::from_bits).collect();
    let mut wide = vec![0.0; all.len() - 3];
    if f16s_to_f32(&all[3..], &mut wide) {
        for (wide, &half) in wide.iter().zip(&all[3..]) {
            assert_eq!(wide.to_bits(), f16_to_f32(half).to_bits(), "{:04x}", half.to_bits());
        }
    }
    let numbers: Vec<f32> = (0..u32::MAX).step_by(997).map(f32::from_bits).chain(wide).collect();
    let mut halves = vec![f16::ZERO; numbers.len()];
    if f16s_from_f32(&numbers, &mut halves) {
        for (half, &v) in halves.iter().zip(&numbers) {
            assert_eq!(half.to_bits(), f16_from_f32(v).to_bits(), "{:08x}", v.to_bits());
        }
    }
}

/// Numbers all over the range, and around every tie: the lower bits of a number of 16 bits, halfway and beside it.
#[test]
fn numbers_of_32_bits_are_rounded_as_half_does() {
    let near = |bits: u32, half: u32| [0, 1, half - 1, half, half + 1, 2 * half - 1].map(|low| bits | low);
    let of_bf16 = (0..1 << 16).flat_map(|high: u32| near(high << 16, 1 << 15));
    let of_f16 = (0..1 << 19).flat_map(|high: u32| near(high << 13, 1 << 12));
    for bits in of_bf16.chain(of_f16).chain((0..u32::MAX).step_by(997)) {
        let v = f32::from_bits(bits);
        assert_eq!(bf16_from_f32(v).to_bits(), bf16::from_f32_const(v).to_bits(), "bf16 of {bits:08x}");
        assert_eq!(f16_from_f32(v).to_bits(), f16::from_f32_const(v).to_bits(), "f16 of {bits:08x}");
    }
}

/// Numbers all over the range, every tie, and numbers so near to one that f32 cannot tell.
#[test]
fn numbers_of_64_bits_are_rounded_to_bf16_once() {
    let numbers = (0..=u16::MAX).flat_map(|high| {
        let (low, next) = (bf16::from_bits(high).to_f64(), bf16::from_bits(high.wrapping_add(1)).to_f64());
        let tie = (low + next) / 2.0;
        [low, tie, tie * (1.0 + 1e-12), tie * (1.0 - 1e-12), low * (1.0 + 1e-3), f64::from(f32::MAX) * low]
    });
    let mut numbers: Vec<f64> = numbers.chain([1e300, -1e-300, f64::MIN_POSITIVE / 4.0]).collect();
    // In blocks with ties and without, with NaN and with infinities.
    numbers.extend((0..2000).map(|i| f64::from(i) * 0.1 - 17.3));
    let end = numbers.len();
    (numbers[end - 1500], numbers[end - 1000], numbers[end - 3]) = (f64::NAN, f64::INFINITY, -1e60);
    let mut found = vec![bf16::ZERO; numbers.len()];
    bf16s_from_f64(&numbers, &mut found);
    for (found, &v) in found.iter().zip(&numbers) {
        assert_eq!(found.to_bits(), bf16_from_f32(v.to_odd_f32()).to_bits(), "{v:e}");
    }
}
