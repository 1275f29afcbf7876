//! Faults that the design of the tape must make impossible: a saved value that is overwritten or whose memory is
//! reused, a leaf that an update turns into something else, a gradient that moves.

mod common;

use common::{counting, devices, leaf, turn, values};
use refrain::optim::{Segment, SegmentTable, SgdBuffers, SgdOptions, sgd};
use refrain::{Activation, DType, Error, Result, Tensor, no_grad};

#[test]
fn a_saved_value_that_was_overwritten_is_found_whoever_wrote_it() {
    let _turn = turn();
    type Write = fn(&Tensor) -> Result<()>;
    let writers: [(&str, Write); 15] = [
        ("write_from", |x| x.write_from(&[9.0f32; 6])),
        ("write_from", |x| x.narrow(0, 5, 1)?.write_from(&[9.0f32])),
        ("write_from", |x| x.reshape([2, 3])?.transpose(0, 1)?.write_from(&[9.0f32; 6])),
        ("fill", |x| x.fill(9.0)),
        ("fill", |x| x.narrow(0, 0, 1)?.fill(9.0)),
        ("copy_from", |x| x.copy_from(&x.zeros_like()?)),
        ("copy_from", |x| {
            x.reshape([2, 3])?.select(1, 1)?.copy_from(&Tensor::zeros([2], DType::F32, x.device())?)
        }),
        ("add_assign", |x| x.add_assign(&x.ones_like()?)),
        ("sub", |x| x.sub_assign(&x.ones_like()?)),
        ("mul", |x| x.mul_scalar_assign(0.9)),
        ("add", |x| x.add_scalar_assign(1.0)),
        ("exp", |x| x.exp_into(x)),
        ("sgd", |x| {
            let one = Tensor::full([1], 0.1, DType::F64, x.device())?;
            let buffers = SgdBuffers {
                parameters: x,
                gradients: &x.ones_like()?,
                momentum_buffer: None,
                learning_rate: &one,
                gradient_scale: &one,
                segments: &SegmentTable::new(&[Segment::new(2, 3)], x.device())?,
            };
            sgd(SgdOptions::default(), buffers)
        }),
        ("sum", |x| x.ones_like()?.unsqueeze(0)?.sum_into(0, x)),
        ("matmul", |x| {
            let eye = Tensor::ones([3, 3], DType::F32, x.device())?;
            Tensor::ones([2, 3], DType::F32, x.device())?.matmul_into(&eye, &x.reshape([2, 3])?)
        }),
    ];
    for device in devices() {
        for (i, (name, write)) in writers.iter().enumerate() {
            let x = leaf(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], &device);
            // Saved as an operand ...
            let y = x.square().unwrap().sum(()).unwrap();
            no_grad(|| write(&x.detach())).unwrap();
            match y.backward() {
                Err(Error::SavedValueOverwritten { op, by, tensor }) => {
                    assert_eq!((op, by), ("square", *name), "writer {i}");
                    assert!(tensor.contains("operand 0") && tensor.contains("f32 [6]"), "{tensor}");
                }
                other => panic!("writer {i}, {name}: {other:?}"),
            }
            assert!(x.grad().is_none());
            // ... and as a result.
            let h = x.exp().unwrap();
            let y = h.sum(()).unwrap();
            no_grad(|| write(&h)).unwrap();
            let e = y.backward().unwrap_err();
            assert!(matches!(e, Error::SavedValueOverwritten { op: "exp", .. }), "writer {i}: {e}");
            assert!(e.to_string().contains("write into another tensor"));
        }
    }
}

#[test]
fn writing_beside_a_saved_value_or_after_the_backward_pass_is_no_fault() {
    let _turn = turn();
    for device in devices() {
        let flat = Tensor::ones([12], DType::F32, &device).unwrap();
        let (a, b) = (flat.narrow(0, 0, 6).unwrap(), flat.narrow(0, 6, 6).unwrap());
        a.set_requires_grad(true).unwrap();
        b.set_requires_grad(true).unwrap();
        let y = a.square().unwrap().sum(()).unwrap();
        no_grad(|| {
            b.fill(3.0)?;
            b.add_assign(&b.ones_like()?)?;
            b.write_from(&[2.0f32; 6])?;
            b.mul_scalar_assign(1.5)
        })
        .unwrap();
        y.backward().unwrap();
        assert_eq!(values(&a.grad().unwrap()), [2.0; 6]);
        // Unsaved values may be overwritten: add saves nothing, floor neither.
        let z = a.add(&b).unwrap();
        let s = z.floor().unwrap().add(&z).unwrap().sum(()).unwrap();
        no_grad(|| z.fill(0.0)).unwrap();
        no_grad(|| a.fill(0.0)).unwrap();
        s.backward().unwrap();
        assert_eq!(values(&b.grad().unwrap()), [1.0; 6]);
        // The update after the backward pass, step after step.
        for _ in 0..5 {
            a.square().unwrap().sum(()).unwrap().backward().unwrap();
            no_grad(|| a.sub_assign(&a.grad().unwrap())).unwrap();
        }
        // A dropped tape protects nothing.
        drop(a.square().unwrap());
        no_grad(|| a.fill(1.0)).unwrap();
    }
}

#[test]
fn an_operation_in_place_is_on_the_tape_or_its_lost_operand_is_found() {
    let _turn = turn();
    for device in devices() {
        let x = leaf(&[0.5, -1.0, 2.0], &device);
        // exp needs only its result.
        let h = x.mul_scalar(2.0).unwrap();
        h.exp_into(&h).unwrap();
        h.sum(()).unwrap().backward().unwrap();
        let expected: Vec<f64> = [0.5f64, -1.0, 2.0].iter().map(|x| 2.0 * (2.0 * x).exp()).collect();
        for (g, e) in values(&x.grad().unwrap()).iter().zip(&expected) {
            assert!((g - e).abs() < 1e-5 * e, "{g} {e}");
        }
        // square needs the operand that it overwrote.
        let h = x.mul_scalar(2.0).unwrap();
        h.square_into(&h).unwrap();
        assert!(h.requires_grad());
        let e = h.sum(()).unwrap().backward().unwrap_err();
        assert!(matches!(e, Error::SavedValueOverwritten { op: "square", by: "square", .. }), "{e}");
        // So does mul with another handle of the operand.
        let h = x.mul_scalar(2.0).unwrap();
        h.mul_into(&h.detach(), &h).unwrap();
        let e = h.sum(()).unwrap().backward().unwrap_err();
        assert!(matches!(e, Error::SavedValueOverwritten { op: "mul", by: "mul", .. }), "{e}");
    }
}

#[test]
fn a_destination_is_taken_off_the_tape_with_its_values_or_refused() {
    let _turn = turn();
    for device in devices() {
        let x = leaf(&[1.0, 2.0, 3.0, 4.0], &device);
        let c = Tensor::ones([4], DType::F32, &device).unwrap();
        // Over a whole result: it is a constant now.
        let h = x.square().unwrap();
        c.exp_into(&h).unwrap();
        assert!(!h.requires_grad());
        // Over a leaf, or a view of a tensor on the tape: refused while the tape exists.
        for dst in [x.clone(), x.narrow(0, 1, 2).unwrap(), x.exp().unwrap().reshape([2, 2]).unwrap()] {
            let source = dst.detach().zeros_like().unwrap();
            for e in [
                source.exp_into(&dst).unwrap_err(),
                dst.copy_from(&source).unwrap_err(),
                dst.fill(1.0).unwrap_err(),
                dst.add_assign(&source).unwrap_err(),
                dst.mul_scalar_assign(2.0).unwrap_err(),
                dst.write_from(&vec![1.0f32; dst.numel()]).unwrap_err(),
            ] {
                assert!(matches!(e, Error::Autograd { .. }), "{e}");
                assert!(e.to_string().contains("no_grad"), "{e}");
            }
            assert!(dst.requires_grad());
        }
        assert_eq!(values(&x), [1.0, 2.0, 3.0, 4.0]);
        // A part of a larger tensor cannot become a result on the tape.
        let e = x.narrow(0, 0, 2).unwrap().exp_into(&c.narrow(0, 0, 2).unwrap()).unwrap_err();
        assert!(matches!(e, Error::Autograd { op: "exp", .. }), "{e}");
    }
}

#[test]
fn an_assignment_in_place_drops_no_gradient_of_its_second_operand() {
    let _turn = turn();
    for device in devices() {
        let w = leaf(&[1.0, 2.0], &device);
        let y = w.mul_scalar(3.0).unwrap();
        let sum = Tensor::ones([2], DType::F32, &device).unwrap();
        for (op, assign) in [
            ("add_assign", Tensor::add_assign as fn(&Tensor, &Tensor) -> Result<()>),
            ("sub_assign", Tensor::sub_assign),
            ("mul_assign", Tensor::mul_assign),
            ("div_assign", Tensor::div_assign),
        ] {
            for operand in [&w, &y] {
                let e = assign(&sum, operand).unwrap_err();
                assert!(matches!(e, Error::Autograd { op: name, .. } if name == op), "{e}");
                let text = e.to_string();
                assert!(["no_grad", "detach()", "_into"].iter().all(|fix| text.contains(fix)), "{text}");
                assert_eq!(values(&sum), [1.0, 1.0]);
                assign(&sum.copy().unwrap(), &operand.detach()).unwrap();
                no_grad(|| assign(&sum.copy()?, operand)).unwrap();
            }
        }
    }
}

#[test]
fn a_leaf_that_is_updated_in_place_stays_a_leaf_with_its_gradient() {
    let _turn = turn();
    for device in devices() {
        let w = leaf(&[1.0, 2.0], &device);
        w.sum(()).unwrap().backward().unwrap();
        let (id, grad) = (w.storage_id(), w.grad().unwrap().storage_id());
        let c = w.detach().copy().unwrap();
        let updates: [fn(&Tensor, &Tensor) -> Result<()>; 9] = [
            |w, c| w.copy_from(c),
            |w, c| w.add_assign(c),
            |w, c| w.sub_assign(c),
            |w, c| w.mul_assign(c),
            |w, c| w.div_assign(c),
            |w, _| w.mul_scalar_assign(0.5),
            |w, _| w.add_scalar_assign(0.5),
            |w, c| c.exp_into(w),
            |w, _| w.write_from(&[1.0f32, 2.0]),
        ];
        for (i, update) in updates.iter().enumerate() {
            no_grad(|| update(&w, &c)).unwrap();
            assert!(w.requires_grad(), "update {i}");
            assert_eq!(w.grad().map(|g| g.storage_id()), Some(grad), "update {i}");
            assert_eq!(w.storage_id(), id, "update {i}");
        }
        w.square().unwrap().sum(()).unwrap().backward().unwrap();
        assert_eq!(values(&w.grad().unwrap()), [3.0, 5.0]);
    }
}

#[test]
fn a_second_backward_pass_is_a_typed_error() {
    let _turn = turn();
    for device in devices() {
        let x = leaf(&[1.0, 2.0], &device);
        let y = x.square().unwrap().sum(()).unwrap();
        y.backward_retain().unwrap();
        y.backward_retain().unwrap();
        assert_eq!(values(&x.grad().unwrap()), [4.0, 8.0]);
        y.backward().unwrap();
        assert_eq!(values(&x.grad().unwrap()), [6.0, 12.0]);
        let e = y.backward().unwrap_err();
        assert!(matches!(e, Error::Autograd { op: "sum", .. }), "{e}");
        assert!(e.to_string().contains("backward_retain"), "{e}");
        assert_eq!(values(&x.grad().unwrap()), [6.0, 12.0]);
        let constant = x.detach().sum(()).unwrap();
        assert!(matches!(constant.backward(), Err(Error::Autograd { op: "backward", .. })));
        assert!(matches!(x.square().unwrap().backward(), Err(Error::Autograd { op: "backward", .. })));
    }
}

#[test]
fn saved_values_are_released_by_the_backward_pass() {
    let _turn = turn();
    for device in devices() {
        let x = leaf(&vec![0.5; 5000], &device);
        x.sum(()).unwrap().backward().unwrap();
        let before = device.stats().live_bytes;
        let y = x.exp().unwrap().tanh().unwrap().square().unwrap().sum(()).unwrap();
        assert!(device.stats().live_bytes > before + 20_000);
        y.backward().unwrap();
        // The scalar itself still exists.
        assert!(device.stats().live_bytes <= before + 64, "the tape still holds its values");
    }
}

#[test]
fn gradients_keep_their_storage_from_step_to_step() {
    let _turn = turn();
    for device in devices() {
        let w = leaf(&[0.1; 12], &device);
        let w = w.detach().reshape([3, 4]).unwrap();
        w.set_requires_grad(true).unwrap();
        let b = leaf(&[0.0; 3], &device);
        let flat = Tensor::zeros([20], DType::F32, &device).unwrap();
        b.set_grad(&flat.narrow(0, 5, 3).unwrap()).unwrap();
        let x = counting(8, &device).reshape([2, 4]).unwrap();
        let mut ids = None;
        for step in 0..5 {
            let y = x.linear(&w, Some(&b), Activation::GeluTanh, None).unwrap();
            y.square().unwrap().mean(()).unwrap().backward().unwrap();
            let now = [w.grad().unwrap().storage_id(), b.grad().unwrap().storage_id()];
            assert_eq!(*ids.get_or_insert(now), now, "step {step}");
            assert_eq!(now[1], flat.storage_id());
            no_grad(|| w.sub_assign(&w.grad().unwrap().mul_scalar(0.1)?)).unwrap();
            w.zero_grad().unwrap();
            b.zero_grad().unwrap();
        }
        assert!(values(&flat).iter().enumerate().all(|(i, &v)| v == 0.0 || (5..8).contains(&i)));
    }
}

#[test]
fn gradients_of_two_leaves_never_share_memory() {
    let _turn = turn();
    for device in devices() {
        let (a, b) = (leaf(&[1.0, 2.0], &device), leaf(&[3.0, 4.0], &device));
        let seed = Tensor::ones([2], DType::F32, &device).unwrap();
        a.add(&b).unwrap().reshape([2]).unwrap().backward_with(&seed).unwrap();
        let (ga, gb) = (a.grad().unwrap(), b.grad().unwrap());
        assert!(!ga.shares_storage(&gb) && !ga.shares_storage(&seed) && !gb.shares_storage(&seed));
        ga.fill(7.0).unwrap();
        assert_eq!((values(&gb), values(&seed)), (vec![1.0; 2], vec![1.0; 2]));
        // A leaf that is used many times, in views that overlap.
        let x = leaf(&[1.0, 2.0, 3.0], &device);
        let parts = [x.narrow(0, 0, 2), x.narrow(0, 1, 2), x.narrow(0, 1, 2)].map(Result::unwrap);
        let sum = parts[0].add(&parts[1]).unwrap().mul(&parts[2]).unwrap().sum(()).unwrap();
        sum.backward().unwrap();
        // d/dx of (x0 + x1) x1 + (x1 + x2) x2
        assert_eq!(values(&x.grad().unwrap()), [2.0, 1.0 + 4.0 + 3.0, 3.0 + 2.0 + 3.0]);
    }
}
