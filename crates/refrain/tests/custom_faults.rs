//! What kernels of users report, and results that are empty or bools.
//!
//! A device that computes beside the host tells an error at the next call, whoever calls. So these tests run one after the other,
//! in a program of their own.

mod common;

use common::{assert_usable, devices, tensor, turn, values};
use refrain::custom::{CudaKernel, CustomOp, HostOperands, Spec};
use refrain::{DType, Device, DeviceKind, Error, Result, Step, Tensor};

/// Elements of a table by their ids, and whether each is positive: as bytes, of which true may be any but 0.
#[derive(Clone, Debug)]
struct Pick;

impl CustomOp for Pick {
    const NAME: &'static str = "pick";

    fn infer(&self, operands: &[Spec]) -> Result<Vec<Spec>> {
        let shape = &operands[1].shape;
        Ok(vec![Spec::new(shape, DType::F32), Spec::new(shape, DType::Bool)])
    }

    fn host(&self, operands: &HostOperands<'_>) -> Result<()> {
        let (table, ids) = (operands.operand::<f32>(0)?, operands.operand::<i64>(1)?);
        let (y, positive) = (operands.result::<f32>(0)?, operands.result::<u8>(1)?);
        for (i, &id) in ids.iter().enumerate() {
            let Some(&x) = usize::try_from(id).ok().and_then(|id| table.get(id)) else {
                let message = format!("index {id} is out of range; there are {} rows", table.len());
                return Err(Error::InvalidArgument { op: Self::NAME, message });
            };
            (y[i], positive[i]) = (x, if x > 0.0 { 7 } else { 0 });
        }
        Ok(())
    }

    fn cuda(&self, _: &[Spec], _: &[Spec]) -> Option<CudaKernel> {
        // The name is one that CUDA has, too.
        let text = "
            __device__ void exp(View<const float> table, View<const i64> ids, View<float> y, View<bool_t> positive, Faults faults) {
                i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x;
                if (i >= y.numel) return;
                bool there = ids[i] >= 0 && ids[i] < table.numel;
                if (!there) faults.report(ids[i] == -100 ? 9 : 1, ids[i], table.numel);
                y[i] = there ? table[ids[i]] : 0.0f;
                positive[i] = y[i] > 0.0f ? 7 : 0;
            }
        ";
        let kernel = CudaKernel::new("exp", text).fault("this is not it");
        Some(kernel.fault("index {0} is out of range; there are {1} rows"))
    }
}

#[test]
fn a_kernel_reports_what_is_wrong_with_values_and_the_device_stays_usable() {
    let _turn = turn();
    for device in devices() {
        let table = tensor(&[1.0, -2.0, 3.0], [3], DType::F32, &device);
        let ids = |ids: &[i64]| Tensor::from_slice(ids, [ids.len()], &device).unwrap();
        let good = Pick.apply(&[&table, &ids(&[2, 1, 0, 0])]).unwrap();
        assert_eq!(good[0].to_vec::<f32>().unwrap(), [3.0, -2.0, 1.0, 1.0]);
        // Many threads report; each report has an index and the rows.
        let bad: Vec<i64> = (0..5000).map(|i| if i % 2 == 0 { 1 } else { 7 }).collect();
        let check = |error: Error| {
            assert!(matches!(error, Error::InvalidArgument { op: "pick", .. }), "{device}: {error:?}");
            let text = error.to_string();
            assert!(text.starts_with("pick: index 7 is out of range; there are 3 rows"), "{device}: {text}");
            assert_usable(&device);
        };
        let eager = Pick.apply(&[&table, &ids(&bad)]).map(drop).and_then(|()| device.synchronize());
        check(eager.expect_err("an error"));
        // In a replay, and the next replay is right again.
        let mut step = Step::new(&device, |x| Ok(Pick.apply(&[&table, &x[0]])?));
        check(step.call(&[ids(&bad)]).map(drop).and_then(|()| device.synchronize()).expect_err("an error"));
        let good: Vec<i64> = bad.iter().map(|id| id % 3).collect();
        let y = step.call(&[ids(&good)]).unwrap().to_vec::<f32>(0).unwrap();
        assert!(y.iter().all(|&y| y == -2.0), "{device}");
        step.finish().unwrap();
        if device.kind() == DeviceKind::Cuda {
            let other = Pick.apply(&[&table, &ids(&[-100])]).map(drop).and_then(|()| device.synchronize());
            let text = other.expect_err("an error").to_string();
            assert!(text.contains("does not declare, with -100 and 3"), "{text}");
        }
    }
}

#[test]
fn a_bool_of_a_kernel_is_0_or_1_and_results_may_be_empty() {
    let _turn = turn();
    for device in devices() {
        let table = tensor(&[1.0, -2.0, 3.0], [3], DType::F32, &device);
        let ids = Tensor::from_slice(&[0i64, 1, 2], [3], &device).unwrap();
        let positive = Pick.apply(&[&table, &ids]).unwrap().remove(1);
        assert_eq!(positive.to_vec::<bool>().unwrap(), [true, false, true], "{device}");
        // What is computed of the bytes of a bool shows whether they are 0 and 1.
        assert_eq!(positive.to_dtype(DType::I64).unwrap().to_vec::<i64>().unwrap(), [1, 0, 1], "{device}");
        assert_eq!(positive.sum(()).unwrap().to_scalar::<i64>().unwrap(), 2, "{device}");
        let none = Pick.apply(&[&table, &ids.narrow(0, 0, 0).unwrap()]).unwrap();
        assert_eq!(none[1].dims(), [0]);
        // The launch has a thread for each element of the largest result, also beside an empty one.
        let parts = Parts { first: 0 }.apply(&[&table]).unwrap();
        assert_eq!((parts[0].numel(), values(&parts[1])), (0, vec![1.0, -2.0, 3.0]), "{device}");
        let parts = Parts { first: 1 }.apply(&[&table]).unwrap();
        assert_eq!((values(&parts[0]), values(&parts[1])), (vec![1.0], vec![-2.0, 3.0]), "{device}");
    }
}

/// The first elements, and the others.
#[derive(Clone, Debug)]
struct Parts {
    first: usize,
}

impl CustomOp for Parts {
    const NAME: &'static str = "parts";

    fn infer(&self, operands: &[Spec]) -> Result<Vec<Spec>> {
        let n = operands[0].shape.numel();
        Ok([self.first, n - self.first].map(|n| Spec::new([n], DType::F32)).into())
    }

    fn host(&self, operands: &HostOperands<'_>) -> Result<()> {
        let (first, others) = operands.operand::<f32>(0)?.split_at(self.first);
        operands.result::<f32>(0)?.copy_from_slice(first);
        operands.result::<f32>(1)?.copy_from_slice(others);
        Ok(())
    }

    fn cuda(&self, _: &[Spec], _: &[Spec]) -> Option<CudaKernel> {
        let text = "
            __device__ void custom(View<const float> x, View<float> first, View<float> others) {
                i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x;
                if (i < first.numel) first[i] = x[i];
                if (i < others.numel) others[i] = x[first.numel + i];
            }
        ";
        Some(CudaKernel::new("custom", text))
    }
}

/// An operation whose host kernel does something wrong.
#[derive(Clone, Debug)]
enum Wrong {
    Fails,
    Panics,
    LeavesItsResult,
    AsksForAnotherType,
    AsksForAnotherOperand,
    AsksForAResultTwice,
    IgnoresStrides,
    UsesATensor,
}

impl CustomOp for Wrong {
    const NAME: &'static str = "wrong";

    fn infer(&self, operands: &[Spec]) -> Result<Vec<Spec>> {
        Ok(vec![operands[0].clone()])
    }

    fn host(&self, operands: &HostOperands<'_>) -> Result<()> {
        let y = || operands.result::<f32>(0);
        match self {
            Wrong::Fails => {
                return Err(Error::InvalidArgument {
                    op: Self::NAME,
                    message: "it does not like this".into(),
                });
            }
            Wrong::Panics => y()?[usize::MAX] = 0.0,
            Wrong::LeavesItsResult => {}
            Wrong::AsksForAnotherType => operands.result::<f64>(0).map(|_| ())?,
            Wrong::AsksForAnotherOperand => operands.operand::<f32>(1).map(|_| ())?,
            Wrong::AsksForAResultTwice => y().and_then(|_| y()).map(|_| ())?,
            Wrong::IgnoresStrides => operands.operand::<f32>(0).map(|_| ())?,
            Wrong::UsesATensor => drop(Tensor::zeros([2], DType::F32, &Device::cpu())?),
        }
        Ok(())
    }

    fn cuda(&self, _: &[Spec], _: &[Spec]) -> Option<CudaKernel> {
        let text = "__device__ void wrong(View<const float> x, View<float> y) { y[0] = 1.0f; }";
        Some(CudaKernel::new("wrong", text))
    }

    fn takes_strides(&self, _: usize) -> bool {
        matches!(self, Wrong::IgnoresStrides)
    }
}

/// The error of an operation, at once or at the next wait for the device.
fn error_of(op: Wrong, x: &Tensor) -> Error {
    op.apply(&[x]).map(drop).and_then(|()| x.device().synchronize()).expect_err("an error")
}

#[test]
fn what_is_wrong_in_a_host_kernel_is_an_error_and_the_device_stays_usable() {
    let _turn = turn();
    for device in devices().filter(|device| device.kind() != DeviceKind::Cuda) {
        let x = tensor(&[1.0, 2.0, 3.0, 4.0], [2, 2], DType::F32, &device).transpose(0, 1).unwrap();
        let error = error_of(Wrong::Fails, &x);
        assert!(matches!(error, Error::InvalidArgument { op: "wrong", .. }), "{error:?}");
        for (op, says) in [
            (Wrong::Panics, "the host kernel panicked: index out of bounds"),
            (Wrong::LeavesItsResult, "did not ask for result 0"),
            (Wrong::AsksForAnotherType, "result 0 is f32, not f64"),
            (Wrong::AsksForAnotherOperand, "there is no operand 1"),
            (Wrong::AsksForAResultTwice, "result 0 was asked for twice"),
            (Wrong::IgnoresStrides, "strided_operand(0)"),
        ] {
            let error = error_of(op, &x);
            assert!(matches!(error, Error::Kernel { op: "wrong", .. }), "{device}: {error:?}");
            assert!(error.to_string().contains(says), "{device}: {error}");
            assert_usable(&device);
        }
        let error = error_of(Wrong::UsesATensor, &x);
        assert!(error.to_string().contains("a host kernel uses a tensor"), "{device}: {error}");
        assert_usable(&device);
        // In a replay, too, whether or not the result is read.
        for (op, returns) in [(Wrong::Panics, true), (Wrong::Fails, false)] {
            let mut step = Step::new(&device, |x| {
                let y = op.clone().apply(&[&x[0]])?;
                Ok(if returns { y } else { vec![] })
            });
            let called = step.call(&[x.clone()]).map(drop).and_then(|()| device.synchronize());
            let error = called.expect_err("an error");
            assert!(
                matches!(
                    error,
                    Error::Kernel { op: "wrong", .. } | Error::InvalidArgument { op: "wrong", .. }
                ),
                "{device}: {error:?}"
            );
            drop(step.finish());
            assert_usable(&device);
        }
    }
}
