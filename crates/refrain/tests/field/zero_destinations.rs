//! **Seen:** on a GPU the destination of any operation read as zeros on the host right after the operation, on unified
//! memory even after the stream was waited for: the result had gone to a buffer of its own, or the host looked before
//! the kernel was done. Gradients never arrived, and the loss stayed at one value.
//!
//! **Found here:** a result that does not lie in the destination's memory, in any part of it, for any dtype; a read that
//! does not wait; a gradient of zeros.

use refrain::{DType, Result, Tensor, no_grad};

use crate::common::{FLOATS, counting, devices, leaf, tensor, turn, values};

#[test]
fn a_destination_holds_its_values_right_after_the_operation() {
    let _turn = turn();
    for device in devices() {
        for n in [1, 7, 1000, 300_000] {
            let x = counting(n, &device);
            let y = Tensor::zeros([n], DType::F32, &device).unwrap();
            let mut read = vec![0.0f32; n];
            for round in 1..4 {
                let k = round as f32;
                x.mul_scalar_into(k as f64, &y).unwrap();
                assert_eq!(y.to_vec::<f32>().unwrap()[n - 1], (n - 1) as f32 * k);
                y.add_into(&x, &y).unwrap();
                y.read_into(&mut read).unwrap();
                assert!(read.iter().enumerate().all(|(i, &v)| v == i as f32 * (k + 1.0)));
                let last = y.narrow(0, n - 1, 1).unwrap();
                last.fill(-5.0).unwrap();
                assert_eq!(y.to_vec::<f32>().unwrap()[n - 1], -5.0);
                y.write_from(&vec![k; n]).unwrap();
                assert_eq!(y.mean(()).unwrap().to_scalar::<f32>().unwrap(), k);
            }
        }
    }
}

#[test]
fn gradients_arrive_and_the_loss_falls() {
    let _turn = turn();
    for device in devices() {
        let w = leaf(&[0.0; 8], &device);
        let x = tensor(
            &(0..64).map(|i| ((i * 37) % 11) as f64 / 11.0).collect::<Vec<_>>(),
            [8, 8],
            DType::F32,
            &device,
        );
        let target = x.sum(1).unwrap();
        let mut losses = Vec::new();
        for _ in 0..50 {
            let y = x.mul(&w).unwrap().sum(1).unwrap();
            let loss = y.sub(&target).unwrap().square().unwrap().mean(()).unwrap();
            loss.backward().unwrap();
            let grad = w.grad().unwrap();
            assert!(grad.to_vec::<f32>().unwrap().iter().any(|&g| g != 0.0), "a gradient of zeros");
            no_grad(|| w.sub_assign(&grad.mul_scalar(0.05)?)).unwrap();
            w.zero_grad().unwrap();
            losses.push(loss.to_scalar::<f32>().unwrap());
        }
        assert!(losses[49] < losses[0] * 0.05, "{losses:?}");
        assert!(losses.windows(2).all(|l| l[1] < l[0]), "{losses:?}");
    }
}

#[test]
fn every_kind_of_operation_leaves_its_result_in_a_destination_of_every_dtype() {
    let _turn = turn();
    type Into = fn(&Tensor, &Tensor, &Tensor) -> Result<()>;
    type Oracle = fn(&[f64], &[f64], usize) -> f64;
    const N: usize = 12;
    /// Sums of a few small integers: exact in every dtype.
    fn product(a: &[f64], b: &[f64], i: usize) -> f64 {
        (0..N).map(|k| a[i / N * N + k] * b[k * N + i % N]).sum()
    }
    let whole: [(&str, Into, Oracle); 14] = [
        ("add", |a, b, y| a.add_into(b, y), |a, b, i| a[i] + b[i]),
        ("sub", |a, b, y| a.sub_into(b, y), |a, b, i| a[i] - b[i]),
        ("mul", |a, b, y| a.mul_into(b, y), |a, b, i| a[i] * b[i]),
        ("div", |a, b, y| a.div_into(b, y), |a, b, i| a[i] / b[i]),
        ("maximum", |a, b, y| a.maximum_into(b, y), |a, b, i| a[i].max(b[i])),
        ("mul_scalar", |a, _, y| a.mul_scalar_into(3.0, y), |a, _, i| a[i] * 3.0),
        ("neg", |a, _, y| a.neg_into(y), |a, _, i| -a[i]),
        ("relu", |a, _, y| a.relu_into(y), |a, _, i| a[i].max(0.0)),
        ("square", |a, _, y| a.square_into(y), |a, _, i| a[i] * a[i]),
        ("clamp", |a, _, y| a.clamp_into(-1.0, 1.0, y), |a, _, i| a[i].clamp(-1.0, 1.0)),
        ("copy_from", |a, _, y| y.copy_from(a), |a, _, i| a[i]),
        ("fill", |_, _, y| y.fill(7.0), |_, _, _| 7.0),
        ("matmul", |a, b, y| a.matmul_into(b, y), product),
        ("linear", |a, b, y| a.linear_into(&b.transpose(0, 1)?, None, NONE, None, y), product),
    ];
    let rows: [(&str, Into, Oracle); 2] = [
        ("sum", |a, _, y| a.sum_into(1, y), |a, _, i| a[i * N..][..N].iter().sum()),
        (
            "amax",
            |a, _, y| a.max_into(1, y),
            |a, _, i| a[i * N..][..N].iter().copied().fold(f64::MIN, f64::max),
        ),
    ];
    for device in devices() {
        let a: Vec<f64> = (0..N * N).map(|i| (i * 7 % 5) as f64 - 2.0).collect();
        let b: Vec<f64> = (0..N * N).map(|i| [1.0, 2.0, 4.0, -1.0][i * 11 % 4]).collect();
        for dtype in FLOATS {
            let [x, y] = [&a, &b].map(|v| tensor(v, [N, N], dtype, &device));
            let check = |name: &str, into: Into, oracle: Oracle, len: usize, dst: &Tensor| {
                into(&x, &y, dst).unwrap();
                let expected: Vec<f64> = (0..len).map(|i| oracle(&a, &b, i)).collect();
                assert_eq!(values(dst), expected, "{name} in {dtype} on {device}");
            };
            // A tensor of its own, and a part of a larger one whose other elements stay.
            let own = Tensor::zeros([N, N], dtype, &device).unwrap();
            let around = Tensor::zeros([3, N, N], dtype, &device).unwrap();
            for (name, into, oracle) in whole {
                check(name, into, oracle, N * N, &own);
                check(name, into, oracle, N * N, &around.select(0, 1).unwrap());
            }
            for (name, into, oracle) in rows {
                check(name, into, oracle, N, &Tensor::zeros([N], dtype, &device).unwrap());
                check(name, into, oracle, N, &around.select(0, 1).unwrap().select(0, 5).unwrap());
            }
            for i in [0, 2] {
                assert!(
                    values(&around.select(0, i).unwrap()).iter().all(|&v| v == 0.0),
                    "{dtype} on {device}"
                );
            }
        }
    }
}

const NONE: refrain::Activation = refrain::Activation::None;
