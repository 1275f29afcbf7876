//! What is very large or very deep: long steps, many captured tensors, many dimensions, deep nests, sizes and numbers at the
//! end of their range. All of it works, or is an error that says why not.

mod common;

use common::{devices, message, values};
use refrain::{DType, Device, Error, Result, Step, Tensor};

/// Runs `f` on a thread with a stack of so many bytes.
fn on_stack(bytes: usize, f: impl FnOnce() + Send) {
    std::thread::scope(|scope| {
        std::thread::Builder::new().stack_size(bytes).spawn_scoped(scope, f).unwrap().join().unwrap();
    });
}

/// A chain of operations, and its backward pass.
fn chain(x: &Tensor, operations: usize) -> Result<()> {
    let mut y = x.clone();
    for _ in 0..operations {
        y = y.tanh()?;
    }
    y.sum(())?.backward()
}

#[test]
fn a_step_of_twenty_thousand_launches_is_the_eager_step() {
    for device in devices() {
        let leaf = || {
            let x = Tensor::full([8], 0.5, DType::F32, &device).unwrap();
            x.set_requires_grad(true).unwrap();
            x.set_grad(&x.zeros_like().unwrap()).unwrap();
            x
        };
        let (eager, recorded) = (leaf(), leaf());
        let mut step = Step::new(&device, |_| Ok(chain(&recorded, 10_000).map(|()| vec![])?));
        for _ in 0..2 {
            chain(&eager, 10_000).unwrap();
            step.call(&[]).unwrap();
            assert_eq!(values(&eager.grad().unwrap()), values(&recorded.grad().unwrap()));
        }
        let program = step.program().unwrap();
        assert!(program.recorded_launches() >= 20_000);
        // A chain: each waits for the one before it, and for nothing by way of that.
        assert!(program.dependencies() <= program.launch_count() + 2, "{}", program.dependencies());
        // Where launches run side by side, the block may be an eighth larger.
        assert!(program.block_bytes() <= program.live_bytes() / 8 * 9);
        assert!(program.to_string().lines().count() > 20_000);
        assert!(program.to_dot().lines().count() > program.launch_count());
        assert!(program.memory_svg().lines().count() > 10_000);
    }
}

/// Launches side by side, which nothing orders, and one that waits for them all.
#[test]
fn a_step_of_thousands_of_parallel_launches_is_the_eager_step() {
    for device in devices() {
        let x = Tensor::full([8], 0.5, DType::F32, &device).unwrap();
        let wide = || -> Result<Vec<Tensor>> {
            let parts = (0..3_000).map(|i| x.add_scalar(i as f64)?.tanh()).collect::<Result<Vec<_>>>()?;
            let parts: Vec<&Tensor> = parts.iter().collect();
            Ok(vec![Tensor::concat(&parts, 0)?])
        };
        let mut step = Step::new(&device, |_| Ok(wide()?));
        for _ in 0..2 {
            assert_eq!(
                step.call(&[]).unwrap().to_vec::<f32>(0).unwrap(),
                wide().unwrap()[0].to_vec::<f32>().unwrap()
            );
        }
    }
}

#[test]
fn a_step_takes_a_hundred_thousand_captured_tensors_on_a_small_stack() {
    for device in devices() {
        let tensors: Vec<Tensor> =
            (0..100_000).map(|_| Tensor::ones([1], DType::F32, &device).unwrap()).collect();
        on_stack(1 << 18, || {
            let mut step = Step::new(&device, |_| {
                tensors.iter().try_for_each(|t| t.fill(2.0))?;
                Ok(vec![])
            });
            step.call(&[]).unwrap();
        });
        assert_eq!(tensors[99_999].to_vec::<f32>().unwrap(), [2.0], "on {device}");
    }
}

#[test]
fn a_tensor_of_a_hundred_thousand_dimensions_prints_on_a_small_stack() {
    on_stack(1 << 18, || {
        let mut dims = vec![1; 100_000];
        let brackets = |c: &str| c.repeat(100_000);
        let text = Tensor::ones(&dims[..], DType::F32, &Device::cpu()).unwrap().to_string();
        assert!(text.starts_with(&(brackets("[") + "1." + &brackets("]"))), "{}", &text[..20]);
        // Of more elements than are printed whole.
        dims[99_999] = 1001;
        let text = Tensor::ones(&dims[..], DType::F32, &Device::cpu()).unwrap().to_string();
        // Each on a line of its own, so far to the right.
        let text: String = text.split_whitespace().collect();
        assert!(text.starts_with(&(brackets("[") + "1.,1.,1.,...,1.,1.,1." + &brackets("]"))));
    });
}

#[test]
fn a_gradient_is_handed_out_without_history_so_that_none_hang_on_each_other() {
    for device in devices() {
        let leaf = || {
            let x = Tensor::ones([1], DType::F32, &device).unwrap();
            x.set_requires_grad(true).unwrap();
            x
        };
        let x = leaf();
        x.set_grad(&x.zeros_like().unwrap()).unwrap();
        let gradient = x.grad().unwrap();
        gradient.set_requires_grad(true).unwrap();
        assert!(!x.grad().unwrap().requires_grad());
        assert!(x.grad().unwrap().shares_storage(&gradient));
        // Each in the gradient of the one before it.
        on_stack(1 << 18, || {
            let first = leaf();
            let mut last = first.clone();
            for _ in 0..20_000 {
                last.set_requires_grad(true).unwrap();
                last.set_grad(&leaf().detach()).unwrap();
                last = last.grad().unwrap();
            }
            drop((first, last));
        });
    }
}

#[test]
fn a_view_of_more_elements_than_can_be_counted_is_refused() {
    for device in devices() {
        for dtype in [DType::F32, DType::F64, DType::U8] {
            let scalar = Tensor::ones((), dtype, &device).unwrap();
            message(scalar.broadcast_to([1 << 60]));
            let refused = message(scalar.broadcast_to([1 << 59]).unwrap().unfold(0, 1 << 58, 1));
            assert!(refused.starts_with("unfold: a tensor of shape ["), "{refused}");
            assert!(refused.contains("larger than the address space"), "{refused}");
            let refused = message(scalar.broadcast_to([1 << 32, 1 << 32]));
            assert!(
                refused.starts_with("broadcast_to: a tensor of shape [4294967296, 4294967296]"),
                "{refused}"
            );
        }
    }
}

#[test]
fn a_step_whose_temporaries_no_address_space_holds_is_refused() {
    for device in devices() {
        let scalar = Tensor::ones((), DType::F64, &device).unwrap();
        let temporaries = |n: usize| {
            let mut step = Step::new(&device, |_| {
                let wide = scalar.broadcast_to([1 << 59])?;
                let all = (0..n).map(|i| wide.add_scalar(i as f64)).collect::<Result<Vec<_>>>()?;
                // A part of each is read, so that all of them are stored.
                let mut sum = all[0].narrow(0, 1, 1)?;
                for t in &all[1..] {
                    sum = sum.add(&t.narrow(0, 1, 1)?)?;
                }
                Ok(vec![sum])
            });
            step.call(&[]).map(drop)
        };
        let refused = message(temporaries(5));
        assert!(refused.starts_with("step: its "), "{refused}");
        assert!(
            refused.contains("(the largest has 4611686018427387904 bytes and is made by add)"),
            "{refused}"
        );
        assert!(matches!(temporaries(1), Err(Error::OutOfMemory { .. })), "{:?}", temporaries(1));
    }
}

#[test]
fn numbers_that_an_integer_dtype_does_not_have_are_refused() {
    for device in devices() {
        let end = 2f64.powi(63);
        let refused = message(Tensor::full([1], end, DType::I64, &device));
        assert!(refused.contains("-9223372036854775808 to 9223372036854775807"), "{refused}");
        let edge = Tensor::full([1], -end, DType::I64, &device).unwrap();
        assert_eq!(edge.to_vec::<i64>().unwrap(), [i64::MIN]);
        message(edge.fill(end));
        message(edge.add_scalar(end));
        let bytes = Tensor::full([2], 250.0, DType::U8, &device).unwrap();
        for value in [256.0, 300.0, -1.0, f64::NAN, f64::INFINITY] {
            message(bytes.fill(value));
            message(bytes.add_scalar(value));
            message(bytes.add_scalar_assign(value));
            message(bytes.scalar_sub(value));
            message(bytes.lt_scalar(value));
        }
        assert_eq!(bytes.add_scalar(5.0).unwrap().to_vec::<u8>().unwrap(), [255; 2]);
    }
}

#[test]
fn a_progression_to_or_by_infinity_is_refused() {
    for device in devices() {
        let (inf, nan) = (f64::INFINITY, f64::NAN);
        for (start, end, step) in [
            (0.0, 5.0, inf),
            (0.0, 5.0, -inf),
            (5.0, inf, -1.0),
            (-inf, inf, 1.0),
            (0.0, nan, 1.0),
            (0.0, 1.0, 0.0),
        ] {
            let refused = message(Tensor::arange(start, end, step, DType::F32, &device));
            assert!(refused.contains("use finite numbers and a step other than 0"), "{refused}");
        }
    }
}
