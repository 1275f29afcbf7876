use crate::testing::{devices, gradcheck, random_words};
use refrain::{DType, Device, Error, Generator, Tensor, no_grad};

fn generator(seed: u64, device: &Device) -> Generator {
    Generator::new(device, seed).unwrap()
}

fn values(t: &Tensor) -> Vec<f64> {
    t.to_dtype(DType::F64).unwrap().to_vec().unwrap()
}

#[test]
fn elements_are_dropped_with_the_probability_asked_for() {
    for device in devices() {
        let g = generator(1, &device);
        const N: usize = 100_001;
        for (p, dtype) in [(0.1, DType::F32), (0.5, DType::F64), (0.75, DType::F16), (0.9, DType::BF16)] {
            let y = values(&Tensor::ones([N], dtype, &device).unwrap().dropout(p, &g).unwrap());
            let kept = y.iter().filter(|&&v| v != 0.0).count() as f64;
            let error = 5.0 * (N as f64 * p * (1.0 - p)).sqrt();
            assert!((kept - N as f64 * (1.0 - p)).abs() < error, "{dtype} {p}: {kept} kept");
            let scale = 1.0 / (1.0 - p);
            for v in y.iter().filter(|&&v| v != 0.0) {
                assert!((v - scale).abs() <= scale * dtype.epsilon().unwrap(), "{dtype} {p}: {v}");
            }
        }
    }
}

#[test]
fn the_gradient_goes_through_the_mask_of_the_forward_pass() {
    for device in devices() {
        let g = generator(2, &device);
        let x =
            Tensor::arange(1.0, 41.0, 1.0, DType::F64, &device).unwrap().reshape([5, 8]).unwrap().detach();
        x.set_requires_grad(true).unwrap();
        // The base moves between forward and backward pass, as at the end of a recorded step.
        let y = x.dropout(0.25, &g).unwrap();
        g.set_state(77, 1234).unwrap();
        y.sum(()).unwrap().backward().unwrap();
        let factor: Vec<f64> = values(&y).iter().zip(values(&x)).map(|(y, x)| y / x).collect();
        let grad = values(&x.grad().unwrap());
        assert!(grad.iter().zip(&factor).all(|(g, f)| (g - f).abs() < 1e-12), "{grad:?} {factor:?}");
        assert!(grad.contains(&0.0) && grad.iter().any(|&g| g > 1.0));
        let draw = |t: &[Tensor]| {
            let same = Generator::from_state(&device, 3, 9)?;
            t[0].transpose(0, 1)?.dropout(0.25, &same)?.square()
        };
        gradcheck(draw, &[x], 1e-6).unwrap();
    }
}

#[test]
fn the_mask_follows_from_the_words_whatever_the_threads_layout_dtype_or_tape() {
    for device in devices() {
        let x = Tensor::ones([70, 300], DType::F32, &device).unwrap();
        let words = random_words(5, 3, x.numel());
        let expected: Vec<bool> = words.iter().map(|&w| f64::from(w) >= 0.3 * 2f64.powi(32)).collect();
        let mask = |x: &Tensor| -> Vec<bool> {
            let g = Generator::from_state(&device, 5, 3).unwrap();
            values(&x.dropout(0.3, &g).unwrap()).iter().map(|&v| v != 0.0).collect()
        };
        assert_eq!(mask(&x), expected);
        assert_eq!(mask(&x.to_dtype(DType::BF16).unwrap()), expected);
        assert_eq!(mask(&x.reshape([300, 70]).unwrap().transpose(0, 1).unwrap()), expected);
        x.set_requires_grad(true).unwrap();
        assert_eq!(mask(&x), expected);
        assert_eq!(no_grad(|| mask(&x)), expected);
    }
}

#[test]
fn a_destination_takes_part_in_the_backward_pass_and_may_be_the_operand() {
    for device in devices() {
        let fresh = || Generator::new(&device, 8).unwrap();
        let x = Tensor::arange(1.0, 2001.0, 1.0, DType::F32, &device).unwrap();
        let expected = x.dropout(0.5, &fresh()).unwrap().to_vec::<f32>().unwrap();
        let leaf = x.copy().unwrap();
        leaf.set_requires_grad(true).unwrap();
        let dst = x.zeros_like().unwrap();
        leaf.dropout_into(0.5, &fresh(), &dst).unwrap();
        assert_eq!(dst.to_vec::<f32>().unwrap(), expected);
        dst.sum(()).unwrap().backward().unwrap();
        let grad = leaf.grad().unwrap().to_vec::<f32>().unwrap();
        assert!(grad.iter().zip(&expected).all(|(g, y)| *g == if *y == 0.0 { 0.0 } else { 2.0 }));
        x.dropout_into(0.5, &fresh(), &x).unwrap();
        assert_eq!(x.to_vec::<f32>().unwrap(), expected);
    }
}

#[test]
fn nothing_dropped_is_the_identity() {
    for device in devices() {
        let g = generator(0, &device);
        let x = Tensor::ones([3], DType::F32, &device).unwrap();
        assert!(x.dropout(0.0, &g).unwrap().shares_storage(&x));
        let y = x.zeros_like().unwrap();
        x.dropout_into(0.0, &g, &y).unwrap();
        assert_eq!(y.to_vec::<f32>().unwrap(), [1.0; 3]);
        assert_eq!(g.state().unwrap(), (0, 0));
        assert_eq!(x.narrow(0, 0, 0).unwrap().dropout(0.5, &g).unwrap().dims(), [0]);
    }
}

#[test]
fn bad_arguments_are_errors() {
    for device in devices() {
        let g = generator(0, &device);
        let x = Tensor::ones([3], DType::F32, &device).unwrap();
        for p in [1.0, -0.1, f64::NAN, f64::INFINITY] {
            let text = x.dropout(p, &g).unwrap_err().to_string();
            assert!(text.starts_with("dropout") && text.contains(&p.to_string()), "{text}");
        }
        let ints = Tensor::ones([3], DType::I32, &device).unwrap();
        assert!(matches!(ints.dropout(0.5, &g), Err(Error::Unsupported { op: "dropout", .. })));
        assert!(matches!(x.dropout_into(0.5, &g, &ints), Err(Error::DTypeMismatch { op: "dropout", .. })));
        assert_eq!(g.state().unwrap(), (0, 0));
    }
}

#[test]
fn a_residual_is_added_to_what_dropout_gives_and_takes_the_gradient_as_it_is() {
    for device in devices() {
        let same = || Generator::from_state(&device, 5, 3).unwrap();
        for dtype in [DType::F64, DType::F32, DType::F16, DType::BF16] {
            // A whole number of blocks, and a part of one.
            for shape in [[70, 300], [7, 3]] {
                let ramp = |step| {
                    Tensor::arange(0.0, (shape[0] * shape[1]) as f64, 1.0, DType::F64, &device)
                        .and_then(|x| x.mul_scalar(step)?.sin()?.reshape(shape)?.to_dtype(dtype))
                        .unwrap()
                };
                let (x, residual) = (ramp(0.7).detach(), ramp(0.3).detach());
                [&x, &residual].iter().for_each(|t| t.set_requires_grad(true).unwrap());
                let other = same();
                let y = x.dropout_add(0.3, &other, &residual).unwrap();
                // The mask, of a dropout of ones.
                let drawn = same();
                let mask =
                    values(&Tensor::ones(shape, DType::F64, &device).unwrap().dropout(0.3, &drawn).unwrap());
                assert_eq!(other.state().unwrap(), drawn.state().unwrap());
                let (a, b) = (values(&x), values(&residual));
                let epsilon = dtype.epsilon().unwrap();
                for (i, y) in values(&y).iter().enumerate() {
                    let expected = b[i] + a[i] * mask[i];
                    assert!(
                        (y - expected).abs() <= epsilon * (b[i].abs() + 2.0 * a[i].abs()),
                        "{dtype} {i}: {y}"
                    );
                }
                y.sum(()).unwrap().backward().unwrap();
                assert!(values(&residual.grad().unwrap()).iter().all(|&d| d == 1.0), "{dtype}");
                for (d, mask) in values(&x.grad().unwrap()).iter().zip(&mask) {
                    assert!((d - mask).abs() <= epsilon * 2.0, "{dtype}: {d} {mask}");
                }
            }
        }
        let x = Tensor::ones([3], DType::F32, &device).unwrap();
        let g = same();
        assert_eq!(values(&x.dropout_add(0.0, &g, &x).unwrap()), [2.0; 3]);
        let text =
            x.dropout_add(0.5, &g, &Tensor::ones([4], DType::F32, &device).unwrap()).unwrap_err().to_string();
        assert!(text.contains("residual"), "{text}");
        assert!(x.dropout_add(1.0, &g, &x).is_err());
        assert_eq!(g.state().unwrap(), (5, 3));
    }
}
