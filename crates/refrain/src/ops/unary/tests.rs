use crate::ops::testing::devices;
use crate::{DType, Error, Tensor, gradcheck};

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
    let device = crate::Device::cpu();
    let wide: Vec<f32> = (0..300 * 75).map(|i| (i * 37 % 101) as f32 * 0.25 - 12.0).collect();
    let wide = Tensor::from_slice(&wide, [300, 75], &device).unwrap();
    for dtype in [DType::F16, DType::BF16] {
        let x = wide.to_dtype(dtype).unwrap();
        for x in
            [x.clone(), x.narrow(1, 3, 67).unwrap(), x.transpose(0, 1).unwrap(), x.narrow(1, 5, 1).unwrap()]
        {
            let of = |t: Tensor| t.to_dtype(DType::F32).unwrap().to_vec::<f32>().unwrap();
            let numbers = of(x.clone());
            assert_eq!(of(x.neg().unwrap()), numbers.iter().map(|v| -v).collect::<Vec<_>>());
            assert_eq!(of(x.abs().unwrap()), numbers.iter().map(|v| v.abs()).collect::<Vec<_>>());
        }
    }
}
