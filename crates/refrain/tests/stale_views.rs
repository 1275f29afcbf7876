//! Views of memory that gets values of another origin: never a gradient of what was there before.

mod common;

use common::{devices, leaf, turn, values};
use refrain::{DType, Error, Result, Tensor, no_grad};

fn assert_stale<T: std::fmt::Debug>(result: Result<T>, op: &str, by: &str) {
    let e = result.unwrap_err();
    assert!(matches!(&e, Error::Autograd { op: name, .. } if *name == op), "{e}");
    let text = e.to_string();
    assert!(
        text.contains(&format!("that {by} has written to")) && text.contains("take the view again"),
        "{text}"
    );
}

#[test]
fn a_view_of_a_result_that_was_changed_in_place_is_refused_until_it_is_taken_again() {
    let _turn = turn();
    for device in devices() {
        let w = leaf(&[1.0, 1.0], &device);
        let x = w.mul_scalar(2.0).unwrap();
        let v = x.unsqueeze(0).unwrap();
        x.mul_scalar_into(2.0, &x).unwrap();
        assert_stale(v.sum(()), "sum", "mul");
        // So are a view of the view and one for all the tape knows at its end.
        assert_stale(v.squeeze(0).unwrap().exp(), "exp", "mul");
        assert_stale(v.transpose(0, 1).unwrap().backward_with(&v.ones_like().unwrap()), "backward", "mul");
        x.unsqueeze(0).unwrap().sum(()).unwrap().backward().unwrap();
        assert_eq!(values(&w.grad().unwrap()), [4.0, 4.0]);
    }
}

#[test]
fn a_view_of_a_result_that_was_overwritten_with_constants_is_refused() {
    let _turn = turn();
    for device in devices() {
        let w = leaf(&[1.0, 1.0], &device);
        let constant = Tensor::ones([2], DType::F32, &device).unwrap();
        let x = w.mul_scalar(2.0).unwrap();
        let v = x.unsqueeze(0).unwrap();
        x.copy_from(&constant).unwrap();
        assert_stale(v.sum(()), "sum", "copy_from");
        assert!(!x.unsqueeze(0).unwrap().sum(()).unwrap().requires_grad());
    }
}

#[test]
fn a_view_of_a_constant_that_was_given_a_history_is_refused_as_operand_and_destination() {
    let _turn = turn();
    for device in devices() {
        let w = leaf(&[1.0, 1.0], &device);
        let c = Tensor::zeros([2], DType::F32, &device).unwrap();
        let (v, part) = (c.unsqueeze(0).unwrap(), c.narrow(0, 0, 1).unwrap());
        c.copy_from(&w).unwrap();
        assert_stale(v.sum(()), "sum", "copy_from");
        // Written to, it would leave the gradient of the whole wrong.
        assert_stale(part.fill(3.0), "fill", "copy_from");
        assert_stale(part.add_assign(&part.detach()), "add_assign", "copy_from");
        assert_stale(part.copy_from(&part.detach()), "copy_from", "copy_from");
        assert_stale(part.detach().exp_into(&part), "exp", "copy_from");
        c.unsqueeze(0).unwrap().sum(()).unwrap().backward().unwrap();
        assert_eq!(values(&w.grad().unwrap()), [1.0, 1.0]);
        // The other way round: a constant whose view was written to.
        let c = Tensor::zeros([2], DType::F32, &device).unwrap();
        let v = c.unsqueeze(0).unwrap();
        w.unsqueeze(0).unwrap().exp_into(&v).unwrap();
        assert!(v.sum(()).unwrap().requires_grad());
        assert_stale(c.sum(()), "sum", "exp");
    }
}

#[test]
fn values_alone_may_be_used_whatever_was_written() {
    let _turn = turn();
    for device in devices() {
        let w = leaf(&[1.0, 2.0], &device);
        let x = w.mul_scalar(2.0).unwrap();
        let (v, detached) = (x.unsqueeze(0).unwrap(), x.detach());
        let of_detached = detached.unsqueeze(0).unwrap();
        x.mul_scalar_into(2.0, &x).unwrap();
        assert_eq!(values(&v.transpose(0, 1).unwrap()), [4.0, 8.0]);
        assert_eq!(values(&no_grad(|| v.exp().and_then(|y| y.log())).unwrap().round().unwrap()), [4.0, 8.0]);
        for t in [&detached, &of_detached, &v.detach()] {
            let y = t.sum(()).unwrap();
            assert!(!y.requires_grad());
            assert_eq!(values(&y), [12.0]);
        }
        // What was detached has views of its own.
        detached.copy_from(&w).unwrap();
        assert_stale(of_detached.sum(()), "sum", "copy_from");
        // Constants over constants, and updates of leaves, change no history.
        let flat = Tensor::zeros([4], DType::F32, &device).unwrap();
        let (p, other) = (flat.narrow(0, 0, 2).unwrap(), flat.narrow(0, 2, 2).unwrap());
        p.set_requires_grad(true).unwrap();
        for _ in 0..3 {
            no_grad(|| flat.copy_from(&flat.ones_like()?)).unwrap();
            other.fill(2.0).unwrap();
            p.mul(&other).unwrap().sum(()).unwrap().backward().unwrap();
        }
        assert_eq!(values(&p.grad().unwrap()), [6.0, 6.0]);
    }
}
