use half::{bf16, f16};

use crate::ops::testing::devices;
use crate::{DType, Device, Element, Error, Tensor, gradcheck};

#[test]
fn gradients_agree_with_finite_differences() {
    for device in devices() {
        let x = Tensor::from_slice(&[0.3f64, 1.7, 0.9, 2.2, 0.05, 1.1], [2, 3], &device).unwrap();
        x.set_requires_grad(true).unwrap();
        let functions: [fn(&Tensor) -> crate::Result<Tensor>; 26] = [
            Tensor::neg,
            Tensor::abs,
            Tensor::exp,
            Tensor::log,
            Tensor::log1p,
            Tensor::expm1,
            Tensor::sqrt,
            Tensor::rsqrt,
            Tensor::reciprocal,
            Tensor::square,
            Tensor::sin,
            Tensor::cos,
            Tensor::tanh,
            Tensor::sigmoid,
            Tensor::relu,
            Tensor::gelu,
            Tensor::gelu_tanh,
            Tensor::silu,
            Tensor::erf,
            Tensor::lgamma,
            Tensor::digamma,
            Tensor::softplus,
            |x| x.sub_scalar(1.0)?.elu(0.7),
            |x| x.sub_scalar(1.0)?.leaky_relu(0.3),
            |x| x.clamp(0.2, 2.0),
            |x| x.transpose(0, 1)?.exp()?.square(),
        ];
        for (i, f) in functions.into_iter().enumerate() {
            gradcheck(|t| f(&t[0]), std::slice::from_ref(&x), 1e-6)
                .unwrap_or_else(|e| panic!("function {i}: {e}"));
        }
    }
}

#[test]
fn nan_stays_and_the_gradient_of_a_step_is_zero() {
    for device in devices() {
        let x = Tensor::from_slice(&[f32::NAN, -1.5, 2.5], [3], &device).unwrap();
        for y in [x.relu(), x.clamp(-1.0, 1.0), x.round()] {
            assert!(y.unwrap().to_vec::<f32>().unwrap()[0].is_nan());
        }
        assert_eq!(x.round().unwrap().to_vec::<f32>().unwrap()[1..], [-2.0, 2.0]);
        x.set_requires_grad(true).unwrap();
        x.floor().unwrap().sum(()).unwrap().backward().unwrap();
        assert!(x.grad().is_none());
    }
}

#[test]
fn integers_take_what_maps_integers_to_integers() {
    for device in devices() {
        let x = Tensor::from_slice(&[-3i32, 0, 5], [3], &device).unwrap();
        assert_eq!(x.neg().unwrap().to_vec::<i32>().unwrap(), [3, 0, -5]);
        assert_eq!(x.clamp(-1.5, 4.5).unwrap().to_vec::<i32>().unwrap(), [-1, 0, 4]);
        assert_eq!(x.clamp(0.5, 9.0).unwrap().to_vec::<i32>().unwrap(), [1, 1, 5]);
        assert!(x.clamp(0.2, 0.8).is_err());
        let e = x.exp().unwrap_err();
        assert!(matches!(e, Error::Unsupported { op: "exp", dtype: DType::I32, .. }), "{e}");
    }
}

#[test]
fn signs_of_halves_change_in_every_layout() {
    // As bits, which tell the zeros apart. All NaN have those of one, because devices may change their signs.
    const NAN: u16 = 0x7fff;
    fn check<T: Element>(device: &Device, of: fn(f32) -> T, bits: fn(T) -> u16) {
        let rare = [0.0, -0.0, f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e-7, -1e-7];
        let number = |i: usize| match i % 11 {
            at @ 0..8 => rare[at],
            _ => (i * 37 % 101) as f32 * 0.25 - 12.0,
        };
        let wide: Vec<T> = (0..300 * 75).map(|i| of(number(i))).collect();
        let x = Tensor::from_slice(&wide, [300, 75], device).unwrap();
        for x in [
            x.clone(),
            x.narrow(1, 3, 67).unwrap(),
            x.transpose(0, 1).unwrap(),
            x.narrow(1, 5, 1).unwrap(),
            x.narrow(1, 6, 1).unwrap().broadcast_to([300, 9]).unwrap(),
        ] {
            let bits = |t: &Tensor| t.to_vec::<T>().unwrap().into_iter().map(bits).collect::<Vec<_>>();
            let before = bits(&x);
            let around = Tensor::zeros([x.dims()[0], x.dims()[1] + 2], x.dtype(), device).unwrap();
            let within = around.narrow(1, 1, x.dims()[1]).unwrap();
            let negated: Vec<u16> = before.iter().map(|&b| if b == NAN { b } else { b ^ 0x8000 }).collect();
            x.neg_into(&within).unwrap();
            assert_eq!((bits(&x.neg().unwrap()), bits(&within)), (negated.clone(), negated));
            let absolute: Vec<u16> = before.iter().map(|b| b & 0x7fff).collect();
            x.abs_into(&within).unwrap();
            assert_eq!((bits(&x.abs().unwrap()), bits(&within)), (absolute.clone(), absolute));
        }
    }
    for device in devices() {
        check(&device, f16::from_f32, |v| if v.is_nan() { NAN } else { v.to_bits() });
        check(&device, bf16::from_f32, |v| if v.is_nan() { NAN } else { v.to_bits() });
    }
}
