use std::collections::HashSet;

use crate::testing::{devices, random_words};
use refrain::{DType, Device, Error, Generator, Step, Tensor, unrelated_to_recordings};

const FLOATS: [DType; 4] = [DType::F64, DType::F32, DType::F16, DType::BF16];

fn generator(seed: u64, device: &Device) -> Generator {
    Generator::new(device, seed).unwrap()
}

fn values(t: &Tensor) -> Vec<f64> {
    t.to_dtype(DType::F64).unwrap().to_vec().unwrap()
}

#[test]
fn a_uniform_number_is_the_top_bits_of_its_word() {
    for device in devices() {
        // Enough numbers for several threads: the result must not depend on the number of threads.
        let (seed, n) = (7 << 40 | 5, 90_001);
        let words = random_words(seed, 0, 2 * n);
        for (dtype, bits) in [(DType::F32, 24), (DType::F16, 11), (DType::BF16, 8)] {
            let x = values(&generator(seed, &device).uniform(n, dtype).unwrap());
            for (x, w) in x.iter().zip(&words) {
                assert_eq!(*x, f64::from(w >> (32 - bits)) / f64::from(1 << bits), "{dtype}");
            }
        }
        for (x, w) in
            values(&generator(seed, &device).uniform(n, DType::F64).unwrap()).iter().zip(words.chunks(2))
        {
            let word = u64::from(w[0]) << 32 | u64::from(w[1]);
            assert_eq!(*x, (word >> 11) as f64 / (1u64 << 53) as f64);
        }
    }
}

#[test]
fn normal_numbers_follow_box_and_muller() {
    for device in devices() {
        let (seed, n) = (3, 40_001);
        let words = random_words(seed, 0, 4 * n);
        let pair = |u: f64, v: f64| {
            let radius = (-2.0 * u.ln()).sqrt();
            [radius * (std::f64::consts::TAU * v).cos(), radius * (std::f64::consts::TAU * v).sin()]
        };
        let word = |i: usize| f64::from(words[i]);
        let (one, two) = (2f64.powi(-32), 2f64.powi(-53));
        let narrow: Vec<f64> =
            (0..n).step_by(2).flat_map(|i| pair((word(i) + 1.0) * one, word(i + 1) * one)).collect();
        let top = |i: usize| ((u64::from(words[i]) << 32 | u64::from(words[i + 1])) >> 11) as f64;
        let wide: Vec<f64> =
            (0..2 * n).step_by(4).flat_map(|i| pair((top(i) + 1.0) * two, top(i + 2) * two)).collect();
        for dtype in FLOATS {
            let expected = if dtype == DType::F64 { &wide } else { &narrow };
            let x = values(&generator(seed, &device).normal(n, dtype).unwrap());
            for (x, e) in x.iter().zip(expected) {
                // Rounding to the dtype, and the elementary functions of two libraries.
                let tolerance = 4.0 * dtype.epsilon().unwrap() * (e.abs() + 1e-3);
                assert!((x - e).abs() <= tolerance, "{dtype}: {x} instead of {e}");
            }
        }
    }
}

#[test]
fn moments_are_those_of_the_distributions() {
    for device in devices() {
        const N: usize = 1 << 18;
        for dtype in FLOATS {
            let g = generator(11, &device);
            let u = values(&g.uniform([512, 512], dtype).unwrap());
            assert!(u.iter().all(|&u| (0.0..1.0).contains(&u)), "{dtype}");
            // The values are a grid of 2^bits numbers below 1, so the mean is half a step below 1/2.
            let step = if dtype == DType::BF16 { 2f64.powi(-8) } else { 2f64.powi(-11) };
            let mean = u.iter().sum::<f64>() / N as f64;
            assert!(
                (mean - 0.5).abs() < step / 2.0 + 5.0 * (1.0 / 12.0 / N as f64).sqrt(),
                "{dtype}: {mean}"
            );
            let z = values(&g.normal([512, 512], dtype).unwrap());
            let moment = |k: i32| z.iter().map(|z| z.powi(k)).sum::<f64>() / N as f64;
            // Five standard errors. The variances of z, z^2, z^3 and z^4 are 1, 2, 15 and 96.
            for (k, expected, variance) in [(1, 0.0, 1.0), (2, 1.0, 2.0), (3, 0.0, 15.0), (4, 3.0, 96.0)] {
                let error = 5.0 * (variance / N as f64).sqrt();
                assert!((moment(k) - expected).abs() < error, "{dtype}: moment {k} is {}", moment(k));
            }
            // Neighbours, which come from one pair, are independent.
            let product = z.chunks(2).map(|z| z[0] * z[1]).sum::<f64>() / (N / 2) as f64;
            assert!(product.abs() < 5.0 / (N as f64 / 2.0).sqrt(), "{dtype}: {product}");
        }
    }
}

#[test]
fn a_restored_generator_continues_bit_for_bit() {
    for device in devices() {
        let (seed, far) = (u64::MAX - 3, u64::MAX - 100);
        for start in [0, 17, far] {
            let g = Generator::from_state(&device, seed, start).unwrap();
            g.uniform(7, DType::F32).unwrap();
            g.normal(3, DType::F64).unwrap();
            let (s, offset) = g.state().unwrap();
            // 7 words are 2 blocks; 3 f64 numbers are 6 words and thus 2 blocks.
            assert_eq!((s, offset), (seed, start.wrapping_add(4)));
            let next = g.normal([5, 100], DType::F32).unwrap().to_vec::<f32>().unwrap();
            let resumed = Generator::from_state(&device, s, offset).unwrap();
            assert_eq!(resumed.normal([5, 100], DType::F32).unwrap().to_vec::<f32>().unwrap(), next);

            g.set_state(s, offset).unwrap();
            assert_eq!(g.normal([5, 100], DType::F32).unwrap().to_vec::<f32>().unwrap(), next);
        }
    }
}

#[test]
fn threads_get_different_parts_of_the_sequence() {
    for device in devices() {
        let g = generator(1, &device);
        let draw = || {
            let numbers = |_| g.clone().uniform(4, DType::F64).unwrap().to_vec::<f64>().unwrap();
            (0..50).flat_map(numbers).collect()
        };
        let draws: Vec<Vec<f64>> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|_| {
                    // Other tests are recording at the same time.
                    scope.spawn(|| unrelated_to_recordings(draw))
                })
                .collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        });
        let all: HashSet<u64> = draws.iter().flatten().map(|v| v.to_bits()).collect();
        assert_eq!(all.len(), 800);
        let expected = values(&generator(1, &device).uniform(800, DType::F64).unwrap());
        assert_eq!(all, expected.iter().map(|v| v.to_bits()).collect());
    }
}

#[test]
fn a_destination_gets_the_numbers_of_a_new_tensor() {
    for device in devices() {
        let wide = Tensor::zeros([3, 7], DType::F32, &device).unwrap();
        let id = wide.storage_id();
        for view in [wide.narrow(1, 2, 4).unwrap(), wide.transpose(0, 1).unwrap(), wide.clone()] {
            let expected =
                generator(2, &device).normal(view.shape(), DType::F32).unwrap().to_vec::<f32>().unwrap();
            generator(2, &device).normal_into(&view).unwrap();
            assert_eq!(view.to_vec::<f32>().unwrap(), expected);
            assert_eq!(wide.storage_id(), id);
        }
        wide.set_requires_grad(true).unwrap();
        assert!(matches!(
            generator(2, &device).uniform_into(&wide),
            Err(Error::Autograd { op: "uniform", .. })
        ));
        refrain::no_grad(|| generator(2, &device).uniform_into(&wide)).unwrap();
    }
}

#[test]
fn what_can_not_be_drawn_is_an_error_and_moves_nothing() {
    for device in devices() {
        let g = generator(2, &device);
        let e = g.uniform([2, 2], DType::I64).unwrap_err();
        assert!(matches!(e, Error::Unsupported { op: "uniform", dtype: DType::I64, .. }), "{e}");
        let ints = Tensor::zeros([2], DType::U8, &device).unwrap();
        assert!(matches!(g.normal_into(&ints), Err(Error::Unsupported { op: "normal", .. })));
        assert!(g.uniform([usize::MAX, 2], DType::F32).unwrap_err().to_string().contains("address space"));
        assert_eq!(g.state().unwrap(), (2, 0));
        assert!(g.uniform([0, 3], DType::F32).unwrap().to_vec::<f32>().unwrap().is_empty());
        assert_eq!(g.uniform((), DType::F32).unwrap().dims(), [0usize; 0]);
        assert_eq!(g.state().unwrap(), (2, 1));
    }
}

#[test]
fn whole_numbers_are_the_scaled_uniform_numbers_also_in_a_step() {
    for device in devices() {
        let (low, high, n) = (-3i64, 8i64, 20_000);
        let uniform = values(&generator(5, &device).uniform(2 * n, DType::F64).unwrap());
        let expected: Vec<i64> =
            uniform.iter().map(|u| low + (u * (high - low) as f64).floor() as i64).collect();
        let eager = generator(5, &device);
        let draw = |g: &Generator| g.randint(low, high, [n]);
        let first = draw(&eager).unwrap().to_vec::<i64>().unwrap();
        assert_eq!([first, draw(&eager).unwrap().to_vec::<i64>().unwrap()].concat(), expected);
        for number in low..high {
            let share = expected.iter().filter(|&&e| e == number).count() as f64 / (2 * n) as f64;
            assert!((share - 1.0 / 11.0).abs() < 0.01, "{number}: {share}");
        }
        let recorded = generator(5, &device);
        let mut step = Step::new(&device, |_| Ok(vec![draw(&recorded)?]));
        let mut calls = || step.call(&[]).unwrap().to_vec::<i64>(0).unwrap();
        assert_eq!([calls(), calls()].concat(), expected);
        step.finish().unwrap();

        let g = generator(5, &device);
        let limit = 1i64 << 53;
        for (low, high) in
            [(3, 3), (4, 3), (i64::MIN, i64::MAX), (limit + 1, limit + 2), (limit, limit + 4), (-1, limit)]
        {
            let refused = g.randint(low, high, [1]);
            assert!(matches!(refused, Err(Error::InvalidArgument { op: "randint", .. })), "{low} {high}");
        }
        let wide = g.randint(-limit / 2, limit / 2, [1000]).unwrap().to_vec::<i64>().unwrap();
        assert!(wide.iter().any(|v| v.abs() > limit / 4) && wide.iter().all(|v| v.abs() <= limit / 2));
    }
}

#[test]
fn a_permutation_orders_the_numbers_by_their_keys() {
    for device in devices() {
        let n = 5000;
        let keys = values(&generator(9, &device).uniform(n, DType::F64).unwrap());
        let order = generator(9, &device).permutation(n).unwrap().to_vec::<i64>().unwrap();
        assert!(order.windows(2).all(|w| keys[w[0] as usize] < keys[w[1] as usize]));
        assert_eq!(order.iter().collect::<HashSet<_>>().len(), n);
        assert_eq!(generator(9, &device).permutation(0).unwrap().dims(), [0]);
        let (g, eager) = (generator(9, &device), generator(9, &device));
        let mut step = Step::new(&device, |_| Ok(vec![g.permutation(50)?]));
        for _ in 0..3 {
            let recorded = step.call(&[]).unwrap().to_vec::<i64>(0).unwrap();
            assert_eq!(recorded, eager.permutation(50).unwrap().to_vec::<i64>().unwrap());
        }
        step.finish().unwrap();
    }
}

#[test]
fn ones_are_as_frequent_as_their_probability() {
    for device in devices() {
        for dtype in [DType::F64, DType::F32, DType::F16, DType::BF16] {
            let p = Tensor::from_slice(&[0.0f64, 0.25, 1.0, -1.0, 2.0, f64::NAN], [6, 1], &device).unwrap();
            let p = p.broadcast_to([6, 20_000]).unwrap().to_dtype(dtype).unwrap();
            let drawn = generator(3, &device).bernoulli(&p).unwrap();
            assert_eq!(drawn.dtype(), dtype);
            let drawn = values(&drawn);
            assert!(drawn.iter().all(|&v| v == 0.0 || v == 1.0));
            let share = |row: usize| drawn[row * 20_000..][..20_000].iter().sum::<f64>() / 20_000.0;
            let shares: Vec<f64> = (0..6).map(share).collect();
            assert_eq!([shares[0], shares[2], shares[3], shares[4], shares[5]], [0.0, 1.0, 0.0, 1.0, 0.0]);
            // Five standard deviations.
            assert!((shares[1] - 0.25).abs() < 0.0155, "{dtype}: {}", shares[1]);
        }
    }
}

#[test]
fn positions_are_drawn_in_proportion_to_their_weights() {
    for device in devices() {
        let weights = Tensor::from_slice(&[1.0f64, 0.0, 6.0, 3.0], [4], &device).unwrap();
        let drawn =
            generator(4, &device).multinomial(&weights, 20_000, true).unwrap().to_vec::<i64>().unwrap();
        let share = |i: i64| drawn.iter().filter(|&&d| d == i).count() as f64 / 20_000.0;
        assert_eq!(share(1), 0.0);
        for (i, expected) in [(0, 0.1), (2, 0.6), (3, 0.3)] {
            // Five standard deviations.
            assert!((share(i) - expected).abs() < 0.018, "{i}: {}", share(i));
        }
        let rows = weights.to_dtype(DType::F32).unwrap().broadcast_to([5000, 4]).unwrap();
        let drawn = generator(4, &device).multinomial(&rows, 4, false).unwrap();
        assert_eq!(drawn.dims(), [5000, 4]);
        let drawn = drawn.to_vec::<i64>().unwrap();
        let mut firsts = [0; 4];
        for row in drawn.chunks(4) {
            assert_eq!(row.iter().collect::<HashSet<_>>().len(), 4);
            assert_eq!(row[3], 1, "weight 0 comes last");
            firsts[row[0] as usize] += 1;
        }
        assert!((firsts[2] as f64 / 5000.0 - 0.6).abs() < 0.035, "{firsts:?}");
    }
}

#[test]
fn what_can_not_be_drawn_is_named() {
    for device in devices() {
        let (g, x) = (generator(1, &device), Tensor::ones([2, 3], DType::F32, &device).unwrap());
        let text = g.multinomial(&x, 4, false).unwrap_err().to_string();
        assert!(
            text.starts_with("multinomial") && text.contains("4 positions") && text.contains("[2, 3]"),
            "{text}"
        );
        assert!(g.multinomial(&x.narrow(1, 0, 0).unwrap(), 1, true).is_err());
        let whole = x.to_dtype(DType::I64).unwrap();
        assert!(matches!(g.multinomial(&whole, 1, true), Err(Error::Unsupported { op: "multinomial", .. })));
        assert!(matches!(g.bernoulli(&whole), Err(Error::Unsupported { op: "bernoulli", .. })));
    }
}
