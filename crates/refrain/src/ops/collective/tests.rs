use crate::testing::{assert_close, values};
use refrain::{
    Communicator, DType, Device, Error, Profile, ReduceOp, Result, Simulator, Step, Tensor, no_grad,
};

/// Runs `f` on each rank, in a thread of its own.
fn on_ranks<R: Send>(devices: &[Device], f: impl Fn(Communicator) -> R + Sync) -> Vec<R> {
    let ranks = Communicator::in_process(devices).unwrap();
    std::thread::scope(|scope| {
        let threads: Vec<_> = ranks.into_iter().map(|rank| scope.spawn(|| f(rank))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn numbers(rank: usize, n: usize) -> Vec<f64> {
    (0..n).map(|i| ((i * 7 + rank * 5) % 11) as f64 / 11.0 - 0.4).collect()
}

/// A collective with a gradient.
type Call = fn(&Communicator, &Tensor) -> Result<Tensor>;

/// The loss of one rank: a function of a collective of `x`, with weights of the rank.
fn loss(communicator: &Communicator, call: Call, x: &Tensor) -> Result<Tensor> {
    let y = call(communicator, &x.mul(x)?)?;
    let weights = Tensor::from_slice(&numbers(communicator.rank() + 3, y.numel()), y.dims(), x.device())?;
    y.tanh()?.mul(&weights)?.sum(())
}

#[test]
fn gradients_are_those_of_the_sum_of_all_ranks_losses() {
    const RANKS: usize = 3;
    const N: usize = 6;
    const STEP: f64 = 1e-6;
    let calls: [Call; 5] = [
        |rank, x| rank.all_reduce(x, ReduceOp::Sum),
        |rank, x| rank.all_reduce(x, ReduceOp::Mean),
        |rank, x| rank.all_gather(x),
        |rank, x| rank.reduce_scatter(x, ReduceOp::Sum),
        |rank, x| rank.reduce_scatter(x, ReduceOp::Mean),
    ];
    for call in calls {
        let devices = [Device::cpu(), Simulator::new(Profile::Unified).device(), Device::cpu()];
        let gradients = on_ranks(&devices, |rank| {
            let x = Tensor::from_slice(&numbers(rank.rank(), N), [N], rank.device()).unwrap();
            x.set_requires_grad(true).unwrap();
            loss(&rank, call, &x).unwrap().backward().unwrap();
            values(&x.grad().unwrap())
        });
        // The sum of the losses, where element `at` of rank `of` is moved.
        let total = |of: usize, at: usize, by: f64| -> f64 {
            let losses = on_ranks(&vec![Device::cpu(); RANKS], |rank| {
                let mut x = numbers(rank.rank(), N);
                x[at] += if rank.rank() == of { by } else { 0.0 };
                let x = Tensor::from_slice(&x, [N], rank.device()).unwrap();
                no_grad(|| loss(&rank, call, &x)).unwrap().to_scalar::<f64>().unwrap()
            });
            losses.iter().sum()
        };
        for (of, gradient) in gradients.iter().enumerate() {
            let differences: Vec<f64> =
                (0..N).map(|at| (total(of, at, STEP) - total(of, at, -STEP)) / (2.0 * STEP)).collect();
            assert_close(gradient, &differences, 1e-8);
        }
    }
}

#[test]
fn a_broadcast_says_that_it_has_no_gradient() {
    let errors = on_ranks(&vec![Device::cpu(); 2], |rank| {
        let x = Tensor::ones([2], DType::F32, rank.device()).unwrap();
        x.set_requires_grad(true).unwrap();
        rank.broadcast(&x, 0).unwrap().sum(()).unwrap().backward().unwrap_err()
    });
    for error in errors {
        assert!(
            matches!(&error, Error::Autograd { op: "broadcast", message } if message.contains("no_grad")),
            "{error}"
        );
    }
}

/// The launches that each launch of a step waits for.
fn waits(rank: &Communicator, step: impl Fn(&Tensor, &Tensor) -> Result<()>) -> Vec<String> {
    let device = rank.device();
    let [x, y] = [1.0, 2.0].map(|v| Tensor::full([4], v, DType::F32, device).unwrap());
    let mut recorded = Step::new(device, |_| {
        step(&x, &y)?;
        Ok(vec![])
    });
    recorded.call(&[]).unwrap();
    let dot = recorded.program().unwrap().to_dot();
    recorded.finish().unwrap();
    dot.lines().filter(|line| line.contains("->")).map(|line| line.trim().to_owned()).collect()
}

#[test]
fn a_collective_is_beside_other_work_and_in_order_with_other_collectives() {
    let device = Simulator::new(Profile::Discrete).device();
    let [a, b] = [0, 1].map(|_| Communicator::in_process(&[device.clone()]).unwrap().remove(0));
    // 0 and 2 work on x, 1 on y.
    let edges = waits(&a, |x, y| {
        a.all_reduce_assign(x, ReduceOp::Sum)?;
        y.mul_scalar_assign(2.0)?;
        x.mul_scalar_assign(2.0)
    });
    assert_eq!(edges, ["n0 -> n2;"]);
    // Other memory, and another communicator: still one after the other.
    let edges = waits(&a, |x, y| {
        a.all_reduce_assign(x, ReduceOp::Sum)?;
        b.all_reduce_assign(y, ReduceOp::Sum)
    });
    assert_eq!(edges, ["n0 -> n1;"]);
    // Nobody reads its result. Other ranks need it all the same.
    let edges = waits(&a, |x, _| {
        a.all_gather(x)?;
        a.barrier()
    });
    assert_eq!(edges, ["n0 -> n1;"]);
}
