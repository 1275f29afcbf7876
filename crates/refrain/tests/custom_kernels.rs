//! Operations of the user's own, with kernels of their own.

mod common;

use common::training::trained;
use common::{FLOATS, assert_usable, devices, failure, tensor, values};
use rayon::prelude::*;
use refrain::custom::{CudaKernel, CustomOp, HostOperands, KernelElement, Save, Spec};
use refrain::{
    DType, Device, DeviceKind, Error, Result, Step, Tensor, bf16, f16, gradcheck, no_grad,
    unrelated_to_recordings,
};

/// A float of a host kernel.
trait Float: KernelElement {
    fn wide(self) -> f64;
    fn narrow(wide: f64) -> Self;
}

macro_rules! floats {
    ($($type:ty: $wide:expr, $narrow:expr;)*) => {$(
        impl Float for $type {
            fn wide(self) -> f64 {
                let wide: fn($type) -> f64 = $wide;
                wide(self)
            }
            fn narrow(value: f64) -> $type {
                let narrow: fn(f64) -> $type = $narrow;
                narrow(value)
            }
        }
    )*};
}

floats! {
    f64: |x| x, |x| x;
    f32: f64::from, |x| x as f32;
    f16: f64::from, f16::from_f64;
    bf16: f64::from, bf16::from_f64;
}

/// `scale * x + shift`, negated or not, of elements that repeat `every` few: element `i` of the result is made of
/// element `i / every * every` of the operand, plus `add`. It has a parameter of each type.
#[derive(Clone, Debug)]
struct Mix {
    scale: f32,
    shift: f64,
    every: i32,
    add: i64,
    negate: bool,
}

const MIX: Mix = Mix { scale: 2.0, shift: 0.5, every: 1, add: 0, negate: false };

impl Mix {
    fn of(&self, x: f64) -> f64 {
        let y = f64::from(self.scale) * x + self.shift + self.add as f64;
        if self.negate { -y } else { y }
    }

    fn run<T: Float>(&self, operands: &HostOperands<'_>) -> Result<()> {
        let (x, strides) = operands.strided_operand::<T>(0)?;
        let sizes = operands.operand_shape(0)?.dims();
        let y = operands.result::<T>(0)?;
        // Runs another task of this thread's pool, if one waits, as any task of rayon may.
        rayon::yield_now();
        y.par_iter_mut().enumerate().for_each(|(i, y)| {
            let mut rest = i / self.every as usize * self.every as usize;
            let mut at = 0;
            for (size, stride) in sizes.iter().zip(strides).rev() {
                at += rest % size * stride;
                rest /= size;
            }
            *y = T::narrow(self.of(x[at].wide()));
        });
        Ok(())
    }
}

impl CustomOp for Mix {
    const NAME: &'static str = "mix";

    fn infer(&self, operands: &[Spec]) -> Result<Vec<Spec>> {
        match operands {
            [x] if x.dtype.is_float() => Ok(vec![x.clone()]),
            _ => Err(Error::InvalidArgument { op: Self::NAME, message: "it takes one float tensor".into() }),
        }
    }

    fn host(&self, operands: &HostOperands<'_>) -> Result<()> {
        match operands.operand_dtype(0)? {
            DType::F64 => self.run::<f64>(operands),
            DType::F32 => self.run::<f32>(operands),
            DType::F16 => self.run::<f16>(operands),
            _ => self.run::<bf16>(operands),
        }
    }

    fn cuda(&self, _: &[Spec], _: &[Spec]) -> Option<CudaKernel> {
        let text = "
            template <typename T>
            __device__ void mix(View<const T> x, View<T> y, float scale, double shift, int every, i64 add, bool negate) {
                i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x;
                if (i >= y.numel) return;
                double value = (double)scale * to<double>(x.at(i / every * every)) + shift + (double)add;
                y[i] = from<T>(negate ? -value : value);
            }
        ";
        let Mix { scale, shift, every, add, negate } = *self;
        let kernel = CudaKernel::new("mix", text).param(scale).param(shift);
        Some(kernel.param(every).param(add).param(negate))
    }

    fn takes_strides(&self, _: usize) -> bool {
        true
    }

    fn backward(&self, gradients: &[Tensor], _: &[Tensor]) -> Result<Vec<Option<Tensor>>> {
        let sign = if self.negate { -1.0 } else { 1.0 };
        Ok(vec![Some((&gradients[0] * (sign * f64::from(self.scale)))?)])
    }

    fn flops(&self, _: &[&refrain::Shape], results: &[&refrain::Shape]) -> u64 {
        2 * results[0].numel() as u64
    }
}

fn mix(x: &Tensor) -> Result<Tensor> {
    Ok(MIX.apply(&[x])?.remove(0))
}

/// The product and the larger one of two f32 tensors. Saves both operands and the first result. Its operands are
/// contiguous, and a warp takes a block.
#[derive(Clone, Debug)]
struct ProductAndMax;

impl CustomOp for ProductAndMax {
    const NAME: &'static str = "product_and_max";

    fn infer(&self, operands: &[Spec]) -> Result<Vec<Spec>> {
        let [a, b] = operands else {
            return Err(Error::InvalidArgument { op: Self::NAME, message: "it takes two tensors".into() });
        };
        if a.shape != b.shape {
            let hint = "both must have one shape".to_owned();
            let (lhs, rhs) = (a.shape.dims().to_vec(), b.shape.dims().to_vec());
            return Err(Error::ShapeMismatch { op: Self::NAME, lhs, rhs, hint });
        }
        Ok(vec![a.clone(), b.clone()])
    }

    fn host(&self, operands: &HostOperands<'_>) -> Result<()> {
        let (a, b) = (operands.operand::<f32>(0)?, operands.operand::<f32>(1)?);
        let (product, max) = (operands.result::<f32>(0)?, operands.result::<f32>(1)?);
        for i in 0..a.len() {
            product[i] = a[i] * b[i];
            max[i] = a[i].max(b[i]);
        }
        Ok(())
    }

    fn cuda(&self, _: &[Spec], results: &[Spec]) -> Option<CudaKernel> {
        let text = "
            // The elements of a block go through shared memory, to show that there is some.
            __device__ void both(View<const float> a, View<const float> b, View<float> product, View<float> max) {
                extern __shared__ float buffer[];
                i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x;
                buffer[threadIdx.x] = i < a.numel ? a[i] : 0.0f;
                __syncthreads();
                if (i >= a.numel) return;
                product[i] = buffer[threadIdx.x] * b[i];
                max[i] = fmaxf(buffer[threadIdx.x], b[i]);
            }
        ";
        let blocks = results[0].shape.numel().div_ceil(32);
        Some(CudaKernel::new("both", text).blocks([blocks, 1, 1], 32).shared_bytes(32 * 4))
    }

    fn saves(&self) -> &'static [Save] {
        &[Save::Operand(1), Save::Result(0), Save::Operand(0)]
    }

    fn backward(&self, gradients: &[Tensor], saved: &[Tensor]) -> Result<Vec<Option<Tensor>>> {
        let [b, product, a] = saved else { panic!("three values were saved") };
        // The saved result is what the formula says, so the order of saved values is the one of `saves`.
        let rest = product.sub(&a.mul(b)?)?;
        let larger = a.gt(b)?.to_dtype(DType::F32)?;
        let of_a = (&gradients[0] * b)? + (&gradients[1] * &larger)?;
        let of_b = (&gradients[0] * a)? + (&gradients[1] * (1.0 - &larger)?)?;
        Ok(vec![Some((of_a? + rest)?), Some(of_b?)])
    }
}

fn leaf(values: &[f32], device: &Device) -> Tensor {
    common::leaf(values, device)
}

fn numbers(n: usize) -> Vec<f64> {
    (0..n).map(|i| i as f64 * 0.25 - 2.0).collect()
}

#[test]
fn every_float_dtype_and_layout_gives_the_formula() {
    for device in devices() {
        for dtype in FLOATS {
            let x = tensor(&numbers(24), [2, 3, 4], dtype, &device);
            let views = [
                x.clone(),
                x.transpose(0, 2).unwrap(),
                x.narrow(1, 1, 2).unwrap(),
                x.narrow(0, 1, 1).unwrap().broadcast_to([5, 3, 4]).unwrap(),
                x.narrow(1, 0, 0).unwrap(),
                x.reshape([24]).unwrap().narrow(0, 7, 1).unwrap().squeeze(0).unwrap(),
            ];
            for view in views {
                let expected: Vec<f64> = values(&view).into_iter().map(|x| MIX.of(x)).collect();
                let y = mix(&view).unwrap();
                assert_eq!((y.shape(), y.dtype()), (view.shape(), dtype));
                assert_eq!(values(&y), expected, "{device} {dtype} {:?}", view.strides());
            }
        }
        // More than one block, and more than a thread's share on the CPU.
        let x = tensor(&numbers(5000), [5000], DType::F64, &device);
        let expected: Vec<f64> = numbers(5000).into_iter().map(|x| MIX.of(x)).collect();
        assert_eq!(values(&mix(&x).unwrap()), expected, "{device}");
    }
}

#[test]
fn each_parameter_reaches_the_kernels() {
    for device in devices() {
        let x = tensor(&[1.0, -2.0, 4.0], [3], DType::F32, &device);
        let of = |op: Mix| values(&op.apply(&[&x]).unwrap()[0]);
        assert_eq!(of(MIX), [2.5, -3.5, 8.5], "{device}");
        assert_eq!(of(Mix { scale: -0.5, ..MIX }), [0.0, 1.5, -1.5]);
        assert_eq!(of(Mix { shift: -1e-300, ..MIX }), [2.0, -4.0, 8.0]);
        assert_eq!(of(Mix { every: 2, ..MIX }), [2.5, 2.5, 8.5]);
        assert_eq!(of(Mix { add: -(1 << 40), ..MIX })[0], -((1u64 << 40) as f64));
        assert_eq!(of(Mix { negate: true, ..MIX }), [-2.5, 3.5, -8.5]);
    }
}

#[test]
fn a_parameter_that_has_changed_is_found() {
    for device in devices() {
        let x = tensor(&[1.0], [1], DType::F32, &device);
        let scale = std::cell::Cell::new(2.0);
        let mut step = Step::new(&device, |x| Ok(Mix { scale: scale.get(), ..MIX }.apply(&[&x[0]])?));
        assert_eq!(step.call(&[x.clone()]).unwrap().to_vec::<f32>(0).unwrap(), [2.5]);
        scale.set(3.0);
        let error = failure(&mut step, &[x]);
        assert!(matches!(error, Error::RecordingChanged { op: "mix", .. }), "{error:?}");
        assert!(error.to_string().contains("its parameter `scale` was 2 when it was recorded, and is 3 now"));
        assert!(step.finish().is_err());
    }
}

#[test]
fn results_and_gradients_are_those_of_the_kernels_and_backward() {
    for device in devices() {
        let x = tensor(&numbers(6), [2, 3], DType::F64, &device);
        x.set_requires_grad(true).unwrap();
        gradcheck(|x| mix(&x[0].transpose(0, 1)?), &[x], 1e-6).unwrap();

        let (a, b) = (leaf(&[1.0, 5.0, -2.0], &device), leaf(&[3.0, 4.0, -1.0], &device));
        let results = ProductAndMax.apply(&[&a, &b]).unwrap();
        assert_eq!(results[0].to_vec::<f32>().unwrap(), [3.0, 20.0, 2.0], "{device}");
        assert_eq!(results[1].to_vec::<f32>().unwrap(), [3.0, 5.0, -1.0]);
        let sum = (results[0].sum(()).unwrap() + (&results[1] * 10.0).unwrap().sum(()).unwrap()).unwrap();
        sum.backward().unwrap();
        assert_eq!(a.grad().unwrap().to_vec::<f32>().unwrap(), [3.0, 14.0, -1.0], "{device}");
        assert_eq!(b.grad().unwrap().to_vec::<f32>().unwrap(), [11.0, 5.0, 8.0]);
        // The kernels get a transposed operand contiguous.
        let square = tensor(&[1.0, 2.0, 3.0, 4.0], [2, 2], DType::F32, &device);
        let results = ProductAndMax.apply(&[&square, &square.transpose(0, 1).unwrap()]).unwrap();
        assert_eq!(values(&results[0]), [1.0, 6.0, 6.0, 16.0], "{device}");
        // Of a result that nothing depends on, the gradient is zeros. One tensor as both operands gets both gradients.
        let c = leaf(&[2.0, 3.0], &device);
        ProductAndMax.apply(&[&c, &c]).unwrap()[0].sum(()).unwrap().backward().unwrap();
        assert_eq!(c.grad().unwrap().to_vec::<f32>().unwrap(), [4.0, 6.0]);
    }
}

#[test]
fn a_saved_value_that_is_overwritten_is_found() {
    for device in devices() {
        let (a, b) = (leaf(&[1.0, 2.0], &device), leaf(&[3.0, 4.0], &device));
        for (overwritten, role) in [(Some(&b), "operand 1"), (None, "result 0")] {
            let results = ProductAndMax.apply(&[&a, &b]).unwrap();
            let sum = results[0].sum(()).unwrap();
            no_grad(|| overwritten.unwrap_or(&results[0]).fill(0.0)).unwrap();
            let error = sum.backward().unwrap_err();
            assert!(
                matches!(&error, Error::SavedValueOverwritten { op: "product_and_max", tensor, .. } if tensor.starts_with(role)),
                "{error:?}"
            );
        }
    }
}

#[test]
fn a_destination_gets_the_result_and_must_not_overlap_an_operand() {
    for device in devices() {
        let x = tensor(&numbers(12), [3, 4], DType::F32, &device);
        let expected: Vec<f64> = numbers(12).into_iter().map(|x| MIX.of(x)).collect();
        let block = tensor(&[7.0; 24], [3, 8], DType::F32, &device);
        let dst = block.narrow(1, 2, 4).unwrap();
        MIX.apply_into(&[&x], &dst).unwrap();
        assert_eq!(values(&dst), expected, "{device}");
        assert_eq!(values(&block.narrow(1, 6, 2).unwrap()), [7.0; 6]);
        // Other columns of the operand's memory are another place.
        MIX.apply_into(&[&block.narrow(1, 6, 2).unwrap()], &block.narrow(1, 0, 2).unwrap()).unwrap();
        assert_eq!(values(&block.narrow(1, 0, 2).unwrap()), [14.5; 6]);

        let aliased = |dst: &Tensor| {
            let error = MIX.apply_into(&[&x], dst).unwrap_err();
            assert!(matches!(error, Error::Aliased { op: "mix", .. }), "{error:?}");
        };
        let neighbours = [1, 0].map(|column| block.narrow(1, column, 2).unwrap());
        let error = MIX.apply_into(&[&neighbours[0]], &neighbours[1]).unwrap_err();
        assert!(matches!(error, Error::Aliased { op: "mix", .. }), "{error:?}");
        aliased(&x);
        aliased(&x.reshape([4, 3]).unwrap().transpose(0, 1).unwrap());
        aliased(&tensor(&[0.0; 4], [1, 4], DType::F32, &device).broadcast_to([3, 4]).unwrap());
        let shape = MIX.apply_into(&[&x], &x.transpose(0, 1).unwrap().copy().unwrap());
        assert!(matches!(shape, Err(Error::ShapeMismatch { op: "mix", .. })), "{shape:?}");
        let dtype = MIX.apply_into(&[&x], &Tensor::zeros([3, 4], DType::F64, &device).unwrap());
        assert!(matches!(dtype, Err(Error::DTypeMismatch { op: "mix", .. })), "{dtype:?}");
        assert_eq!(values(&x), numbers(12));
    }
}

#[test]
fn a_recorded_step_gives_the_bits_of_eager_code() {
    for device in devices() {
        let start = leaf(&[0.3, -0.7, 1.1, 0.2], &device).detach();
        let forward = |w: &Tensor, x: &Tensor| ProductAndMax.apply(&[&mix(&(w * x)?)?, w]);
        let (recorded, program) = trained(&start, 0.001, true, forward);
        assert!(program.contains("mix") && program.contains("product_and_max"), "{program}");
        assert_eq!(recorded, trained(&start, 0.001, false, forward).0, "{device}");
    }
}

#[test]
fn a_small_kernel_may_use_rayon_wherever_it_is_called() {
    let device = Device::cpu();
    let shared = tensor(&[0.0; 8], [8], DType::F32, &device);
    // Tasks of one pool that launch kernels on the same memory, which use rayon while they hold its lock.
    let launch = || MIX.apply_into(&[&shared.ones_like()?], &shared);
    (0..200).into_par_iter().for_each(|_| unrelated_to_recordings(launch).unwrap());
    assert_eq!(values(&shared), [2.5; 8]);
}

/// An operation that asks for something wrong.
#[derive(Clone, Debug)]
enum Wrong {
    HasNoCudaKernel,
    HasNoResult,
    HasManyAxes,
    SavesWhatItHasNot,
    HasNoGradient,
    HasLargeBlocks,
}

impl CustomOp for Wrong {
    const NAME: &'static str = "wrong";

    fn infer(&self, operands: &[Spec]) -> Result<Vec<Spec>> {
        Ok(match self {
            Wrong::HasNoResult => vec![],
            Wrong::HasManyAxes => vec![Spec::new([1; 9], DType::F32)],
            _ => vec![operands[0].clone()],
        })
    }

    fn host(&self, operands: &HostOperands<'_>) -> Result<()> {
        operands.result::<f32>(0)?.fill(1.0);
        Ok(())
    }

    fn cuda(&self, _: &[Spec], _: &[Spec]) -> Option<CudaKernel> {
        let text = "__device__ void wrong(View<const float> x, View<float> y) { y[0] = 1.0f; }";
        let kernel = CudaKernel::new("wrong", text);
        match self {
            Wrong::HasNoCudaKernel => None,
            Wrong::HasLargeBlocks => Some(kernel.threads(1, 2048)),
            _ => Some(kernel),
        }
    }

    fn saves(&self) -> &'static [Save] {
        match self {
            Wrong::SavesWhatItHasNot => &[Save::Operand(40)],
            _ => &[],
        }
    }
}

#[test]
fn what_is_wrong_before_the_launch_is_an_error_on_every_device() {
    for device in devices() {
        let x = tensor(&[1.0], [1], DType::F32, &device);
        let refused = |op: Wrong, says: &str| {
            let error = op.apply(&[&x]).map(drop).expect_err(says);
            assert!(
                matches!(
                    error,
                    Error::InvalidArgument { op: "wrong", .. } | Error::Kernel { op: "wrong", .. }
                ),
                "{error:?}"
            );
            assert!(error.to_string().contains(says), "{error}");
        };
        refused(Wrong::HasNoResult, "no result");
        refused(Wrong::HasManyAxes, "more than 8 axes");
        refused(Wrong::SavesWhatItHasNot, "Operand(40)");
        refused(Wrong::HasLargeBlocks, "2048 threads");
        match device.kind() {
            DeviceKind::Cpu => drop(Wrong::HasNoCudaKernel.apply(&[&x]).unwrap()),
            _ => refused(Wrong::HasNoCudaKernel, "return one from CustomOp::cuda"),
        }
        let none = MIX.apply(&[]).map(drop).unwrap_err();
        assert!(matches!(none, Error::InvalidArgument { op: "mix", .. }), "{none:?}");
        let many: Vec<&Tensor> = vec![&x; 16];
        let many = Wrong::HasNoGradient.apply(&many).map(drop).unwrap_err();
        assert!(many.to_string().contains("17 operands and results"), "{many}");
        let whole = mix(&tensor(&[1.0], [1], DType::I32, &device)).unwrap_err();
        assert!(matches!(whole, Error::InvalidArgument { op: "mix", .. }), "{whole:?}");
        let shapes = ProductAndMax.apply(&[&x, &tensor(&[1.0; 2], [2], DType::F32, &device)]);
        assert!(matches!(shapes, Err(Error::ShapeMismatch { op: "product_and_max", .. })));
        x.set_requires_grad(true).unwrap();
        let y = Wrong::HasNoGradient.apply(&[&x]).unwrap().remove(0);
        let gradient = y.sum(()).unwrap().backward().unwrap_err();
        assert!(matches!(gradient, Error::Autograd { op: "wrong", .. }), "{gradient:?}");
    }
    let (here, there) = (leaf(&[1.0], &Device::cpu()), leaf(&[1.0], &"sim".parse().unwrap()));
    let mixed = ProductAndMax.apply(&[&here, &there]);
    assert!(matches!(mixed, Err(Error::DeviceMismatch { op: "product_and_max", .. })));
}

/// Its text does not compile.
#[derive(Clone, Debug)]
struct Misspelt;

impl CustomOp for Misspelt {
    const NAME: &'static str = "misspelt";

    fn infer(&self, operands: &[Spec]) -> Result<Vec<Spec>> {
        Ok(operands.to_vec())
    }

    fn host(&self, _: &HostOperands<'_>) -> Result<()> {
        Ok(())
    }

    fn cuda(&self, _: &[Spec], _: &[Spec]) -> Option<CudaKernel> {
        Some(CudaKernel::new(
            "f",
            "\n__device__ void f(View<const float> x, View<float> y) { y[0] = nobody; }",
        ))
    }
}

#[test]
fn a_text_that_does_not_compile_shows_what_the_compiler_says() {
    for device in devices().filter(|device| device.kind() == DeviceKind::Cuda) {
        let x = tensor(&[1.0], [1], DType::F32, &device);
        let error = Misspelt.apply(&[&x]).map(drop).unwrap_err();
        assert!(matches!(error, Error::Device { op: "misspelt", .. }), "{error:?}");
        let text = error.to_string();
        // The second line of the text.
        assert!(text.contains("f.cu(2)") && text.contains("nobody"), "{text}");
        let mut step = Step::new(&device, |x| Ok(Misspelt.apply(&[&x[0]])?));
        let error = failure(&mut step, &[x]);
        assert!(matches!(error, Error::Device { op: "misspelt", .. }), "{error:?}");
        drop(step);
        assert_usable(&device);
    }
}
