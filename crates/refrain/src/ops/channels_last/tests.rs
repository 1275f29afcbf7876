use crate::testing::{devices, shortened, values};
use refrain::{
    Conv2dOptions, DType, Device, DeviceKind, Error, Generator, Pool2dOptions, Precision, Tensor, no_grad,
    with_precision,
};

fn images(shape: [usize; 4], dtype: DType, device: &Device) -> Tensor {
    Generator::new(device, 3).unwrap().normal(shape, DType::F32).unwrap().to_dtype(dtype).unwrap()
}

/// Whether images keep their channels first. Where the kernels of a GPU are written down, they lie as on one.
fn is_cpu(device: &Device) -> bool {
    device.kind() == DeviceKind::Cpu && std::env::var_os("REFRAIN_KERNELS").is_none()
}

/// Whether it is row-major as `[N, H, W, C]`.
fn is_last(t: &Tensor) -> bool {
    t.permute(&[0, 2, 3, 1]).unwrap().is_contiguous()
}

#[test]
fn images_keep_their_values_and_lie_with_their_channels_last_on_a_gpu() {
    for device in devices() {
        let x = images([2, 3, 4, 5], DType::F32, &device);
        let y = x.channels_last().unwrap();
        assert_eq!(values(&y), values(&x));
        assert_eq!((y.dims(), y.dtype()), (x.dims(), x.dtype()));
        match is_cpu(&device) {
            true => assert!(y.is_contiguous() && y.shares_storage(&x)),
            false => assert!(is_last(&y) && y.channels_last().unwrap().shares_storage(&y)),
        }
        let error = x.flatten(2, 3).unwrap().channels_last().unwrap_err();
        assert!(matches!(error, Error::InvalidArgument { .. }), "{error}");
        assert!(
            error.to_string().contains("[2, 3, 20]") && error.to_string().contains("[N, C, H, W]"),
            "{error}"
        );
    }
}

#[test]
fn their_gradient_is_that_of_the_images() {
    for device in devices() {
        let x = images([2, 3, 4, 5], DType::F32, &device);
        x.set_requires_grad(true).unwrap();
        x.channels_last().unwrap().square().unwrap().sum(()).unwrap().backward().unwrap();
        let twice = no_grad(|| x.mul_scalar(2.0)).unwrap();
        assert_eq!(values(&x.grad().unwrap()), values(&twice));
    }
}

#[test]
fn elementwise_operations_keep_channels_last_and_have_the_same_bits() {
    type Function = fn(&Tensor, &Tensor, &Tensor) -> refrain::Result<Tensor>;
    let functions: [Function; 6] = [
        |x, _, _| x.relu(),
        |x, y, _| x.mul(y),
        |x, _, row| x.add(row),
        |x, _, _| x.to_dtype(DType::F64),
        |x, y, _| x.gt(y)?.where_cond(x, y),
        |x, y, _| {
            let sum = x.copy()?.channels_last()?;
            sum.add_assign(y)?;
            Ok(sum)
        },
    ];
    for device in devices() {
        let [x, y] = [[3, 6, 4, 5]; 2].map(|shape| images(shape, DType::F32, &device));
        let y = y.neg().unwrap();
        let row = images([1, 6, 1, 1], DType::F32, &device);
        for (i, function) in functions.into_iter().enumerate() {
            let plain = function(&x, &y, &row).unwrap();
            let [x, y] = [&x, &y].map(|t| t.channels_last().unwrap());
            let last = function(&x, &y, &row).unwrap();
            assert_eq!(values(&last), values(&plain), "{device} {i}");
            assert!(is_cpu(&device) || is_last(&last), "{device} {i}");
        }
        // Operands that lie differently have a row-major result.
        let mixed = x.channels_last().unwrap().add(&y).unwrap();
        assert_eq!(values(&mixed), values(&x.add(&y).unwrap()));
        // So has a copy.
        assert!(x.channels_last().unwrap().copy().unwrap().is_contiguous());
    }
}

#[test]
fn results_with_their_channels_last_may_be_written_to_on_the_tape() {
    for device in devices() {
        let o = Conv2dOptions::default();
        let weight = images([24, 16, 3, 3], DType::F32, &device);
        weight.set_requires_grad(true).unwrap();
        let [mean, var] = [Tensor::zeros([24], DType::F32, &device), Tensor::ones([24], DType::F32, &device)]
            .map(|t| t.unwrap());
        let x = images([2, 16, 8, 8], DType::F32, &device).channels_last().unwrap();
        let into = |y: &Tensor| {
            y.relu_into(y).unwrap();
            values(y)
        };
        with_precision(Precision::Bf16, || {
            let y = x.conv2d(&weight, None, &o).unwrap();
            let results = [
                y.batch_norm(&var, &mean, &mean, &var, 1, false, 0.1, 1e-5).unwrap(),
                y.avg_pool2d(&Pool2dOptions::new([2, 2])).unwrap(),
                y.mul_scalar(2.0).unwrap(),
                y,
            ];
            for y in results {
                let expected = values(&no_grad(|| y.relu()).unwrap());
                assert_eq!(into(&y), expected);
                y.to_dtype(DType::F32).unwrap().sum(()).unwrap().backward_retain().unwrap();
            }
        });
        assert!(values(&weight.grad().unwrap()).iter().any(|&x| x != 0.0));
    }
}

/// The result, and the gradients of images and parameters, of a residual network with pooling; its images as `of` gives them.
fn network(images: &Tensor, of: impl Fn(&Tensor) -> Tensor) -> (Tensor, Vec<Vec<f64>>) {
    let device = images.device();
    let generator = Generator::new(device, 5).unwrap();
    let leaf = |shape: &[usize], scale: f64| {
        let t = no_grad(|| generator.normal(shape, DType::F32)?.mul_scalar(scale)).unwrap();
        t.set_requires_grad(true).unwrap();
        t
    };
    let x = images.detach();
    x.set_requires_grad(true).unwrap();
    let weights = [leaf(&[24, 3, 3, 3], 0.3), leaf(&[24, 24, 3, 3], 0.1), leaf(&[16, 24, 1, 1], 0.3)];
    let parameters = [leaf(&[24], 1.0), leaf(&[24], 0.1)];
    let (mean, var) = (Tensor::zeros([24], DType::F32, device), Tensor::ones([24], DType::F32, device));
    let (mean, var) = (mean.unwrap(), var.unwrap());
    let o = |stride: usize, padding: usize| Conv2dOptions {
        stride: [stride; 2],
        padding: [padding; 2],
        ..Conv2dOptions::default()
    };
    let norm = |y: Tensor| y.batch_norm(&parameters[0], &parameters[1], &mean, &var, 1, true, 0.1, 1e-5);
    let run = || -> refrain::Result<Tensor> {
        let y = norm(of(&x).conv2d(&weights[0], None, &o(1, 1))?)?.relu()?;
        let y = y.max_pool2d(&Pool2dOptions::new([2, 2]))?;
        let y = norm(y.conv2d(&weights[1], None, &o(1, 1))?)?.add(&y)?.relu()?;
        y.conv2d(&weights[2], None, &o(2, 0))
    };
    let y = run().unwrap();
    y.to_dtype(DType::F32).unwrap().square().unwrap().mean(()).unwrap().backward().unwrap();
    let leaves = [&x].into_iter().chain(&weights).chain(&parameters);
    let mut found: Vec<Vec<f64>> = leaves.map(|t| values(&t.grad().unwrap())).collect();
    found.extend([values(&y), values(&mean), values(&var)]);
    (y, found)
}

#[test]
fn a_network_of_images_with_their_channels_last_computes_what_it_computes_of_others() {
    let settings = [
        (DType::F32, Precision::Bf16),
        (DType::F16, Precision::F32),
        (DType::F32, Precision::Tf32),
        (DType::F32, Precision::F32),
    ];
    for device in devices() {
        for (dtype, precision) in shortened(settings, 0, 2) {
            let x = images([4, 3, 12, 14], dtype, &device);
            let both = with_precision(precision, || {
                [network(&x, Tensor::clone), network(&x, |x| x.channels_last().unwrap())]
            });
            let [(plain, expected), (last, found)] = both;
            assert!(plain.is_contiguous());
            let is_narrow = dtype == DType::F16 || precision == Precision::Bf16;
            assert_eq!(is_last(&last), is_narrow && !is_cpu(&device), "{device} {dtype} {precision:?}");
            // Sums of batch norm have another order, and gradients near the kink of a ReLU may be those of its other side.
            for (found, expected) in found.iter().zip(&expected) {
                let largest = expected.iter().fold(0.0f64, |a, &x| a.max(x.abs()));
                let far =
                    found.iter().zip(expected).filter(|(a, b)| (*a - *b).abs() > 0.03 * largest).count();
                assert!(
                    far * 100 <= expected.len(),
                    "{device} {dtype} {precision:?}: {far} of {}",
                    expected.len()
                );
            }
        }
    }
}
