use crate::testing::devices;
use refrain::{DType, Tensor};

/// Elements of which the numbers are added first: part of what the number is.
const CHUNK: usize = 1 << 14;

fn checksum(x: &Tensor) -> i64 {
    x.checksum().unwrap().to_scalar().unwrap()
}

/// The same by whole numbers of any size.
fn expected(bits: &[u64]) -> i64 {
    const WORD: u128 = 1 << 64;
    let of_chunk = |chunk: &[u64]| {
        let mixed = chunk.iter().enumerate().map(|(at, &bits)| {
            let x = (u128::from(bits) + 0x9e37_79b9_7f4a_7c15 * (at as u128 + 1)) % WORD;
            let x = (x ^ (x / (1 << 30))) * 0xbf58_476d_1ce4_e5b9 % WORD;
            let x = (x ^ (x / (1 << 27))) * 0x94d0_49bb_1331_11eb % WORD;
            x ^ (x / (1 << 31))
        });
        (mixed.sum::<u128>() % WORD) as u64
    };
    match bits {
        [] => 0,
        _ if bits.len() <= CHUNK => of_chunk(bits) as i64,
        _ => expected(&bits.chunks(CHUNK).map(of_chunk).collect::<Vec<_>>()),
    }
}

#[test]
fn the_number_is_that_of_the_bits_for_every_size_of_elements_and_tensors() {
    for device in devices() {
        for n in [0, 1, 2, 255, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 7] {
            let numbers: Vec<f32> = (0..n).map(|i| (i as f32 * 0.37).sin()).collect();
            let x = Tensor::from_slice(&numbers, [n], &device).unwrap();
            let bits: Vec<u64> = numbers.iter().map(|v| u64::from(v.to_bits())).collect();
            assert_eq!(checksum(&x), expected(&bits), "{n} f32");
            let wide: Vec<u64> = numbers.iter().map(|&v| f64::from(v).to_bits()).collect();
            assert_eq!(checksum(&x.to_dtype(DType::F64).unwrap()), expected(&wide), "{n} f64");
            let narrow = x.to_dtype(DType::BF16).unwrap();
            let bits: Vec<u64> =
                narrow.to_vec::<refrain::bf16>().unwrap().iter().map(|v| v.to_bits().into()).collect();
            assert_eq!(checksum(&narrow), expected(&bits), "{n} bf16");
            let bytes: Vec<u8> = (0..n).map(|i| (i * 7 % 251) as u8).collect();
            let x = Tensor::from_slice(&bytes, [n], &device).unwrap();
            assert_eq!(
                checksum(&x),
                expected(&bytes.iter().map(|&b| b.into()).collect::<Vec<_>>()),
                "{n} u8"
            );
        }
        for dtype in DType::ALL {
            assert_ne!(checksum(&Tensor::ones([3], dtype, &device).unwrap()), 0, "{dtype}");
        }
    }
}

#[test]
fn whatever_differs_changes_the_number_and_the_layout_does_not() {
    for device in devices() {
        let n = 2 * CHUNK + 100;
        let numbers: Vec<f32> = (0..n).map(|i| (i as f32 * 0.37).sin()).collect();
        let of = |numbers: &[f32]| checksum(&Tensor::from_slice(numbers, [numbers.len()], &device).unwrap());
        let first = of(&numbers);
        for at in [0, 1, CHUNK - 1, CHUNK, n - 1] {
            let mut other = numbers.clone();
            other[at] = f32::from_bits(other[at].to_bits() ^ 1);
            assert_ne!(of(&other), first, "one bit at {at}");
            let mut other = numbers.clone();
            other.swap(at, (at + CHUNK) % n);
            assert_ne!(of(&other), first, "swapped at {at}");
        }
        assert_ne!(of(&numbers[..n - 1]), first);
        assert_ne!(of(&[0.0]), of(&[-0.0]));
        assert_ne!(of(&[0.0]), of(&[0.0, 0.0]));
        assert_eq!(of(&[f32::NAN]), of(&[f32::NAN]));
        let x = Tensor::from_slice(&numbers[..600], [20, 30], &device).unwrap();
        let turned = x.transpose(0, 1).unwrap();
        assert_eq!(checksum(&turned), checksum(&turned.contiguous().unwrap()));
        assert_ne!(checksum(&turned), checksum(&x));
        x.set_requires_grad(true).unwrap();
        assert!(!x.checksum().unwrap().requires_grad());
    }
}
