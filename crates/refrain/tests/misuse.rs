//! No panic on any argument: every public method returns `Ok` or an `Error` that names the operation.

mod common;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use common::{devices, turn};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use refrain::{
    Activation, Conv1dOptions, Conv2dOptions, ConvTranspose1dOptions, DType, Device, Error, Generator,
    IndexReduction, Interpolation, PadMode, Pool1dOptions, SdpaOptions, Shape, Tensor, no_grad,
};

/// Sizes of dimensions: small ones, and sometimes one too large for any memory. Nothing in between, which the machine
/// would try to allocate.
fn size() -> impl Strategy<Value = usize> {
    prop_oneof![
        6 => 1usize..5,
        2 => Just(0usize),
        1 => Just(1usize),
        1 => prop_oneof![Just(usize::MAX), Just(isize::MAX as usize), Just(1usize << 62)],
    ]
}

fn small() -> impl Strategy<Value = usize> {
    prop_oneof![6 => 1usize..5, 2 => Just(0usize), 1 => Just(usize::MAX), 1 => Just(1usize << 62)]
}

fn axis() -> impl Strategy<Value = isize> {
    prop_oneof![8 => -4isize..5, 1 => Just(isize::MIN), 1 => Just(isize::MAX)]
}

fn number() -> impl Strategy<Value = f64> {
    prop_oneof![
        4 => (-8i32..8).prop_map(f64::from),
        2 => -2.0f64..2.0,
        1 => prop_oneof![Just(f64::NAN), Just(f64::INFINITY), Just(f64::NEG_INFINITY), Just(1e300), Just(-0.0)],
    ]
}

fn dtype() -> impl Strategy<Value = DType> {
    prop_oneof![
        3 => Just(DType::F32),
        1 => prop::sample::select(&DType::ALL[..]),
    ]
}

/// How a tensor was made: a shape, and views taken of it (those that do not fit are left out).
#[derive(Clone, Debug)]
struct Recipe {
    dims: Vec<usize>,
    dtype: DType,
    views: Vec<(u8, isize, usize, usize)>,
    grad: bool,
}

prop_compose! {
    fn recipe()(
        dims in prop::collection::vec(prop_oneof![5 => 1usize..5, 1 => Just(0usize)], 0..5),
        dtype in dtype(),
        views in prop::collection::vec((0u8..6, -4isize..4, 0usize..5, 0usize..5), 0..3),
        grad in any::<bool>(),
    ) -> Recipe {
        Recipe { dims, dtype, views, grad }
    }
}

fn make(r: &Recipe, device: &Device) -> Tensor {
    let n: usize = r.dims.iter().product();
    let values: Vec<f64> =
        (0..n).map(|i| (i % 5) as f64 - 1.0).map(|v| if r.dtype.is_float() { v } else { v.abs() }).collect();
    let mut t = common::tensor(&values, &r.dims[..], r.dtype, device);
    if r.grad && r.dtype.is_float() {
        t.set_requires_grad(true).unwrap();
    }
    for &(kind, axis, a, b) in &r.views {
        let view = match kind {
            0 => t.transpose(axis, a as isize),
            1 => t.narrow(axis, a, b),
            2 => t.unsqueeze(axis),
            3 => t.unfold(axis, a, b),
            4 => t.unsqueeze(0).and_then(|t| {
                let dims: Vec<usize> = [b].into_iter().chain(t.dims()[1..].iter().copied()).collect();
                t.broadcast_to(dims)
            }),
            _ => t.select(axis, a),
        };
        t = view.unwrap_or(t);
    }
    t
}

/// Arguments of every kind.
#[derive(Clone, Debug)]
struct Arguments {
    a: Recipe,
    b: Recipe,
    c: Recipe,
    shape: Vec<usize>,
    axes: Vec<isize>,
    axis: isize,
    other_axis: isize,
    n: usize,
    m: usize,
    x: f64,
    y: f64,
    dtype: DType,
    flag: bool,
    record: bool,
}

prop_compose! {
    fn arguments()(
        (a, b, c) in (recipe(), recipe(), recipe()),
        same in 0u8..4,
        shape in prop::collection::vec(size(), 0..5),
        axes in prop::collection::vec(axis(), 0..4),
        (axis, other_axis) in (axis(), axis()),
        (n, m) in (small(), small()),
        (x, y) in (number(), number()),
        dtype in dtype(),
        flag in any::<bool>(),
        record in any::<bool>(),
    ) -> Arguments {
        // Mostly operands that have something in common, so that later checks are reached too.
        let (mut b, mut c) = (b, c);
        if same > 0 {
            (b.dtype, c.dtype) = (a.dtype, a.dtype);
        }
        if same > 1 {
            b.dims = a.dims.clone();
            b.views = a.views.clone();
        }
        if same > 2 {
            c = b.clone();
        }
        Arguments { a, b, c, shape, axes, axis, other_axis, n, m, x, y, dtype, flag, record }
    }
}

/// The message of a method: `None` if it returned `Ok`.
type Outcome = Option<Error>;

fn of<T>(r: refrain::Result<T>) -> Outcome {
    r.err()
}

/// A method: its name, whether errors must carry that very name, and the call.
type Method = (&'static str, fn(&Arguments, &Device) -> Outcome);

macro_rules! methods {
    ($($name:literal: |$g:ident, $a:ident, $b:ident, $c:ident| $call:expr;)*) => {
        &[$(($name, |$g: &Arguments, device: &Device| {
            #[allow(unused_variables)]
            let ($a, $b, $c) = (make(&$g.a, device), make(&$g.b, device), make(&$g.c, device));
            of($call)
        })),*]
    };
}

/// Integer operands for indices, whatever the recipe is.
fn ids(t: &Tensor) -> Tensor {
    t.detach().to_dtype(DType::I64).unwrap()
}

/// An id for each row, the same for all.
fn one_each(t: &Tensor, id: usize) -> Tensor {
    let rows = t.dims().first().map_or(1, |&d| d);
    Tensor::full([rows], id.min(9) as f64, DType::I64, t.device()).unwrap()
}

fn flags(t: &Tensor) -> Tensor {
    t.detach().to_dtype(DType::Bool).unwrap()
}

const METHODS: &[Method] = methods! {
    "full": |g, a, b, c| Tensor::full(&g.shape[..], g.x, g.dtype, a.device());
    "zeros": |g, a, b, c| Tensor::zeros(&g.shape[..], g.dtype, a.device());
    "arange": |g, a, b, c| Tensor::arange(g.x, g.y, if g.flag || (g.y.abs() < 0.01 && g.y != 0.0) { 1.0 } else { g.y }, g.dtype, a.device());
    "from_slice": |g, a, b, c| Tensor::from_slice(&[1.0f32; 12][..g.n.min(12)], &g.shape[..], a.device());
    "size": |g, a, b, c| a.size(g.axis);
    "view": |g, a, b, c| a.view(&g.shape[..]);
    "reshape": |g, a, b, c| a.reshape(&g.shape[..]);
    "reshape": |g, a, b, c| a.reshape(&g.axes[..]);
    "view": |g, a, b, c| a.view((g.n, g.axis));
    "i": |g, a, b, c| a.i((g.n, g.m.., ..g.n));
    "": |g, a, b, c| a.i((.., g.n..=g.m));
    "": |g, a, b, c| &a + &b;
    "": |g, a, b, c| g.x / &a;
    "": |g, a, b, c| Generator::new(a.device(), 1).and_then(|r| r.randint(g.axis as i64, g.n as i64, &g.shape[..]));
    "": |g, a, b, c| Generator::new(a.device(), 1).and_then(|r| r.permutation(g.n));
    "flatten": |g, a, b, c| a.flatten(g.axis, g.other_axis);
    "permute": |g, a, b, c| a.permute(&g.axes);
    "transpose": |g, a, b, c| a.transpose(g.axis, g.other_axis);
    "narrow": |g, a, b, c| a.narrow(g.axis, g.n, g.m);
    "": |g, a, b, c| a.select(g.axis, g.n);
    "broadcast_to": |g, a, b, c| a.broadcast_to(&g.shape[..]);
    "squeeze": |g, a, b, c| a.squeeze(g.axis);
    "unsqueeze": |g, a, b, c| a.unsqueeze(g.axis);
    "unfold": |g, a, b, c| a.unfold(g.axis, g.n, g.m);
    "split": |g, a, b, c| a.split(g.n, g.axis);
    "": |g, a, b, c| a.chunk(g.n, g.axis);
    "": |g, a, b, c| a.unbind(g.axis);
    "": |g, a, b, c| a.unflatten(g.axis, [g.n as isize, -1]);
    "": |g, a, b, c| a.glu(g.axis);
    "": |g, a, b, c| a.split_with_sizes(&[g.n, g.m], g.axis);
    "exp": |g, a, b, c| a.exp();
    "exp": |g, a, b, c| a.exp_into(&b);
    "sign": |g, a, b, c| a.sign();
    "gelu": |g, a, b, c| a.gelu_into(&a);
    "relu": |g, a, b, c| a.relu_into(&b);
    "clamp": |g, a, b, c| a.clamp(g.x, g.y);
    "clamp": |g, a, b, c| a.clamp_into(g.x, g.y, &b);
    "add": |g, a, b, c| a.add(&b);
    "add": |g, a, b, c| a.add_into(&b, &c);
    "sub": |g, a, b, c| a.sub(&b);
    "remainder": |g, a, b, c| a.remainder(&b);
    "remainder": |g, a, b, c| a.remainder_scalar(g.x);
    "atan2": |g, a, b, c| a.atan2(&b);
    "hypot": |g, a, b, c| a.hypot_scalar(g.x);
    "logaddexp": |g, a, b, c| a.logaddexp_into(&b, &c);
    "": |g, a, b, c| a.nan_to_num(g.x, g.y, g.x).and_then(|_| a.isfinite()).and_then(|_| a.isinf());
    "mish": |g, a, b, c| a.mish();
    "atanh": |g, a, b, c| a.atanh_into(&b);
    "erfc": |g, a, b, c| a.erfc_into(&b);
    "erfinv": |g, a, b, c| a.erfinv();
    "mul": |g, a, b, c| a.mul_into(&b, &a);
    "div": |g, a, b, c| a.div(&b);
    "pow": |g, a, b, c| a.pow(&b);
    "maximum": |g, a, b, c| a.maximum(&b);
    "eq": |g, a, b, c| a.eq(&b);
    "lt": |g, a, b, c| a.lt_into(&b, &c);
    "logical_and": |g, a, b, c| a.logical_and(&b);
    "add": |g, a, b, c| a.add_scalar(g.x);
    "pow": |g, a, b, c| a.pow_scalar(g.x);
    "div": |g, a, b, c| a.scalar_div(g.x);
    "pow": |g, a, b, c| a.scalar_pow_into(g.x, &b);
    "minimum": |g, a, b, c| a.minimum_scalar_into(g.x, &b);
    "ge": |g, a, b, c| a.ge_scalar(g.x);
    "add_assign": |g, a, b, c| a.add_assign(&b);
    "": |g, a, b, c| a.sub_assign(&b);
    "": |g, a, b, c| a.div_assign(&b);
    "mul": |g, a, b, c| a.mul_scalar_assign(g.x);
    "fill": |g, a, b, c| a.fill(g.x);
    "copy_from": |g, a, b, c| a.copy_from(&b);
    "copy_from": |g, a, b, c| a.copy_from(&a.transpose(0, 1).unwrap_or(b));
    "to_dtype": |g, a, b, c| a.to_dtype(g.dtype);
    "to_dtype": |g, a, b, c| a.to_dtype_into(&b);
    "write_from": |g, a, b, c| a.write_from(&vec![1.0f32; g.n.min(64)]);
    "write_pieces": |g, a, b, c| a.write_pieces(|_, piece| { piece.fill(1); Ok(()) });
    "to_vec": |g, a, b, c| a.to_vec::<f32>();
    "to_scalar": |g, a, b, c| a.to_scalar::<f32>();
    "read_into": |g, a, b, c| a.read_into(&mut vec![0.0f32; g.n.min(64)]);
    "sum": |g, a, b, c| a.sum(&g.axes[..]);
    "sum": |g, a, b, c| a.sum_keepdim(g.axis);
    "mean": |g, a, b, c| a.mean(());
    "mean": |g, a, b, c| a.mean_into(&g.axes[..], &b);
    "max": |g, a, b, c| a.max(&g.axes[..]);
    "min": |g, a, b, c| a.min_into(g.axis, &b);
    "var": |g, a, b, c| a.var(&g.axes[..], g.n);
    "var": |g, a, b, c| a.var(g.axis, 1).and_then(|v| v.backward_with(&v.ones_like()?).or(Ok(())));
    "argmax": |g, a, b, c| a.argmax(&g.axes[..]);
    "argmin": |g, a, b, c| a.argmin_into((), &b);
    "softmax": |g, a, b, c| a.softmax(g.axis);
    "log_softmax": |g, a, b, c| a.log_softmax_into(g.axis, &b);
    "batch_norm": |g, a, b, c| a.batch_norm(&b, &b, &c, &c.copy().unwrap(), g.axis, g.flag, g.x, g.y);
    "batch_norm": |g, a, b, c| {
        let p = |v: f64| Tensor::full(a.dims().get(1).map_or(3, |&d| d), v, a.dtype(), a.device()).unwrap();
        a.batch_norm(&p(1.0), &p(0.0), &p(0.0), &p(1.0), 1, g.flag, 0.1, 1e-5)
    };
    "channels_last": |g, a, b, c| a.channels_last();
    "l2_normalize": |g, a, b, c| a.l2_normalize(g.axis, g.x);
    "qk_norm": |g, a, b, c| {
        let t = Tensor::full(a.dims().last().copied().unwrap_or(1), g.x, a.dtype(), a.device()).ok()?;
        Tensor::stack(&[&a, &a, &a], -2).ok()?.unsqueeze(-1).ok()?.qk_norm(if g.flag { &t } else { &b }, g.y)
    };
    "qk_norm": |g, a, b, c| {
        let t = Tensor::full(a.dims().last().copied().unwrap_or(1), g.x, a.dtype(), a.device()).ok()?;
        let packed = Tensor::stack(&[&a, &a, &a], -2).ok()?.unsqueeze(-1).ok()?;
        let dst = packed.detach().copy().ok()?;
        packed.qk_norm_into(&t, g.y, if g.flag { &dst } else { &b })
    };
    "mse_loss": |g, a, b, c| a.mse_loss(&b);
    "l1_loss": |g, a, b, c| a.l1_loss_into(&b, &c);
    "huber_loss": |g, a, b, c| a.huber_loss(&b, g.x);
    "quantile_loss": |g, a, b, c| a.quantile_loss(&b, &[0.1, 0.5, 0.9][..g.n.min(3)]);
    "quantile_loss": |g, a, b, c| a.unsqueeze(-1).unwrap().quantile_loss(&b, &[g.x]);
    "cross_entropy": |g, a, b, c| a.cross_entropy(&if g.flag { one_each(&a, 0) } else { ids(&b) });
    "cross_entropy": |g, a, b, c| a.cross_entropy_into(&one_each(&a, 0), &Tensor::zeros((), a.dtype(), a.device()).unwrap());
    "cross_entropy": |g, a, b, c| a.cross_entropy_smoothed(&one_each(&a, g.n), g.x);
    "sum_to": |g, a, b, c| a.sum_to(&g.shape[..]);
    "matmul": |g, a, b, c| a.matmul(&b);
    "matmul": |g, a, b, c| a.matmul_into(&b, &c);
    "linear": |g, a, b, c| a.linear(&b, g.flag.then_some(&c), Activation::Gelu, None);
    "linear": |g, a, b, c| a.linear(&a, None, Activation::GeluTanh, None);
    "linear": |g, a, b, c| {
        let plain = |t: &Tensor| no_grad(|| t.linear(&t.detach(), None, Activation::None, None));
        a.linear_into(&a, None, Activation::None, None, &plain(&a).unwrap_or(c))
    };
    "": |g, a, b, c| a.scaled_dot_product_attention(&b, &c, g.flag.then_some(g.x), g.flag);
    "": |g, a, b, c| a.scaled_dot_product_attention_qkvpacked(g.flag.then_some(g.x), g.flag);
    "": |g, a, b, c| {
        let generator = Generator::new(a.device(), 1).unwrap();
        let (dropout, scores) = (Some((g.x, &generator)), g.flag.then_some(&c));
        let options = SdpaOptions { dropout, scores, causal: g.flag, returns_scores: true, ..SdpaOptions::default() };
        a.scaled_dot_product_attention_with(&b, &b, &options).map(|(y, _)| y)
    };
    "": |g, a, b, c| {
        let scores = g.flag.then_some(&b);
        let options = SdpaOptions { scores, returns_scores: true, ..SdpaOptions::default() };
        a.scaled_dot_product_attention_qkvpacked_with(&options).map(|(y, _)| y)
    };
    "gru": |g, a, b, c| {
        let ones = |shape: &[usize]| Tensor::ones(shape, g.dtype, a.device()).unwrap();
        let (n, m) = (g.n.min(9), g.m.min(9));
        let (w, h) = (ones(&[3 * n, n]), ones(&[2, n]));
        if g.flag { a.gru(&b, &c, &b) } else { ones(&[2, m, 3 * n]).gru(&w, &ones(&[3 * n]), &h) }
    };
    "lstm": |g, a, b, c| {
        let ones = |shape: &[usize]| Tensor::ones(shape, g.dtype, a.device()).unwrap();
        let (n, m) = (g.n.min(9), g.m.min(9));
        let (w, h) = (ones(&[4 * n, n]), ones(&[2, n]));
        let both = if g.flag { a.lstm(&b, &c, &b, &b) } else { ones(&[2, m, 4 * n]).lstm(&w, &ones(&[4 * n]), &h, &h) };
        both.map(|(states, _)| states)
    };
    "layer_norm": |g, a, b, c| a.layer_norm(&b, &c, g.x);
    "rms_norm": |g, a, b, c| a.rms_norm(&b, g.x);
    "rms_norm": |g, a, b, c| a.rms_norm_into(&b, g.x, &c);
    "concat": |g, a, b, c| Tensor::concat(&[&a, &b, &c][..g.n.min(3)], g.axis);
    "": |g, a, b, c| Tensor::stack(&[&a, &b, &c][..g.n.min(3)], g.axis);
    "concat": |g, a, b, c| Tensor::concat_into(&[&a, &b], g.axis, &c);
    "repeat": |g, a, b, c| a.repeat(&g.shape[..]);
    "pad": |g, a, b, c| a.pad(&g.shape.iter().map(|&d| (d, g.n)).collect::<Vec<_>>(), g.x);
    "pad": |g, a, b, c| a.pad(&vec![(1, 0); a.rank()], g.x);
    "pad": |g, a, b, c| {
        let mode = [PadMode::Reflect, PadMode::Replicate, PadMode::Circular][g.n % 3];
        let padding = if g.flag { g.shape.iter().map(|&d| (d, g.n)).collect() } else { vec![(1, 1); a.rank()] };
        a.pad(&padding, mode)
    };
    "interpolate": |g, a, b, c| {
        let mode = match g.n % 5 {
            0 => Interpolation::Nearest,
            1 => Interpolation::NearestExact,
            2 => Interpolation::Linear { align_corners: g.flag },
            3 => Interpolation::Cubic { align_corners: g.flag },
            _ => Interpolation::Area,
        };
        a.interpolate(&g.shape, mode)
    };
    "adaptive_avg_pool1d": |g, a, b, c| a.adaptive_avg_pool1d(g.n);
    "adaptive_avg_pool2d": |g, a, b, c| a.adaptive_avg_pool2d([g.n, g.m]);
    "": |g, a, b, c| if g.flag { a.quantile(g.x, g.axis) } else { a.median(g.axis) };
    "gather": |g, a, b, c| a.gather(g.axis, &ids(&b));
    "gather": |g, a, b, c| a.gather_into(g.axis, &ids(&b), &c);
    "gather": |g, a, b, c| a.gather(g.axis, &b);
    "index_select": |g, a, b, c| a.index_select(g.axis, &ids(&b));
    "index_add": |g, a, b, c| a.index_add(g.axis, &ids(&b), &c);
    "index_reduce": |g, a, b, c| a.index_reduce(g.axis, &ids(&b), &c, IndexReduction::Amax, g.flag);
    "": |g, a, b, c| {
        let n = a.size(g.axis).unwrap_or(1);
        let first = Tensor::zeros(n, DType::I64, a.device()).ok()?;
        if g.flag {
            a.index_add_into(g.axis, &first, &a, &a)
        } else {
            a.index_reduce_into(g.axis, &first, &a, IndexReduction::Amin, true, &a)
        }
    };
    "scatter_add": |g, a, b, c| a.scatter_add(g.axis, &ids(&b), &c);
    "": |g, a, b, c| a.scatter_add_into(g.axis, &ids(&b), &c, &a);
    "one_hot": |g, a, b, c| ids(&a).one_hot(g.n.min(9), g.dtype);
    "one_hot": |g, a, b, c| ids(&a).one_hot(g.n, g.dtype).and_then(|_| a.one_hot(g.m, g.dtype));
    "embedding": |g, a, b, c| a.embedding(&ids(&b));
    "where_cond": |g, a, b, c| flags(&a).where_cond(&b, &c);
    "where_cond": |g, a, b, c| a.where_cond(&b, &c);
    "masked_fill": |g, a, b, c| a.masked_fill(&flags(&b), g.x);
    "masked_fill": |g, a, b, c| a.masked_fill_into(&b, g.x, &a);
    "logsumexp": |g, a, b, c| a.logsumexp(&g.axes[..]);
    "": |g, a, b, c| a.norm(g.x, &g.axes[..]).and_then(|y| y.backward_with(&y.ones_like()?).or(Ok(())));
    "cumsum": |g, a, b, c| a.cumsum(g.axis);
    "": |g, a, b, c| a.cumprod(g.axis).and_then(|y| y.backward_with(&y.ones_like()?).or(Ok(())));
    "linear_recurrence": |g, a, b, c| a.linear_recurrence(&b, g.axis, g.flag.then_some(&c));
    "": |g, a, b, c| a.linear_recurrence(&b, g.axis, None).and_then(|y| y.backward_with(&y.ones_like()?).or(Ok(())));
    "": |g, a, b, c| a.linear_recurrence_into(&b, g.axis, g.flag.then_some(&c), &a);
    "": |g, a, b, c| a.cholesky().and_then(|y| y.backward_with(&y.ones_like()?).or(Ok(())));
    "cholesky": |g, a, b, c| a.cholesky_into(&b);
    "": |g, a, b, c| a.solve_triangular(&b, g.flag).and_then(|y| y.backward_with(&y.ones_like()?).or(Ok(())));
    "solve_triangular": |g, a, b, c| a.solve_triangular_into(&b, g.flag, &c);
    "": |g, a, b, c| a.solve(&b).and_then(|y| y.backward_with(&y.ones_like()?).or(Ok(())));
    "solve": |g, a, b, c| a.solve_into(&b, &c);
    "inverse": |g, a, b, c| a.inverse();
    "cholesky_solve": |g, a, b, c| a.cholesky_solve(&b);
    "flip": |g, a, b, c| a.flip(&g.axes[..]);
    "roll": |g, a, b, c| a.roll(&[g.n as isize, g.axis][..g.m.min(2)], &[g.axis, g.other_axis]);
    "tril": |g, a, b, c| a.tril(g.n as i64);
    "triu": |g, a, b, c| a.triu_into(g.axis as i64, &b);
    "sort": |g, a, b, c| a.sort(g.axis, g.flag);
    "argsort": |g, a, b, c| a.argsort_into(g.axis, g.flag, &b);
    "topk": |g, a, b, c| a.topk(g.n, g.axis, g.flag);
    "": |g, a, b, c| a.topk(g.n, g.axis, g.flag).and_then(|(y, _)| y.backward_with(&y.ones_like()?).or(Ok(())));
    "scatter": |g, a, b, c| a.scatter(g.axis, &ids(&b), &c);
    "": |g, a, b, c| a.scatter_into(g.axis, &ids(&b), &c, &a);
    "": |g, a, b, c| Generator::new(a.device(), 1).and_then(|r| r.bernoulli(&a));
    "": |g, a, b, c| Generator::new(a.device(), 1).and_then(|r| r.multinomial(&a, g.n, g.flag));
    "conv1d": |g, a, b, c| {
        let [stride, padding, dilation, groups] = [g.n, g.m, g.n, if g.flag { 1 } else { g.m }];
        let ones = |shape: [usize; 3]| Tensor::ones(shape, a.dtype(), a.device()).unwrap();
        let options = Conv1dOptions { stride, padding, dilation, groups };
        ones([2, 4, 6]).conv1d(&ones([4, 4, 2]), None, &options)
    };
    "": |g, a, b, c| a.conv1d(&b, None, &Conv1dOptions::default());
    "": |g, a, b, c| {
        let ones = |shape: [usize; 3]| Tensor::ones(shape, a.dtype(), a.device()).unwrap();
        let options = Conv1dOptions { stride: g.n, ..Conv1dOptions::default() };
        ones([2, 4, 6]).conv1d_into(&ones([4, 4, 2]), None, &options, &ones([2, 4, 5]))
    };
    "": |g, a, b, c| {
        let options = Conv2dOptions { stride: [g.n, 1], padding: [g.m, 1], ..Conv2dOptions::default() };
        a.unsqueeze(0).and_then(|x| x.conv2d(&x, None, &options))
    };
    "conv_transpose1d": |g, a, b, c| {
        let [stride, padding, output_padding, dilation] = [g.n, g.m, g.m, g.n];
        let ones = |shape: [usize; 3]| Tensor::ones(shape, a.dtype(), a.device()).unwrap();
        let options = ConvTranspose1dOptions { stride, padding, output_padding, dilation, groups: 1 };
        ones([2, 4, 6]).conv_transpose1d(&ones([4, 3, 2]), None, &options)
    };
    "max_pool1d": |g, a, b, c| a.max_pool1d_into(&Pool1dOptions::new(g.n), &b);
    "": |g, a, b, c| a.max_pool1d(&Pool1dOptions { kernel: g.n, stride: g.m, padding: g.m, count_include_pad: g.flag });
    "avg_pool1d": |g, a, b, c| a.avg_pool1d(&Pool1dOptions { kernel: g.n, stride: g.n, padding: g.m, count_include_pad: g.flag });
    "hadamard_transform": |g, a, b, c| a.hadamard_transform();
    "windows": |g, a, b, c| a.windows(&ids(&b), g.n);
    "dropout": |g, a, b, c| Generator::new(a.device(), 1).and_then(|r| a.dropout(g.x, &r));
    "": |g, a, b, c| Generator::new(a.device(), 1).and_then(|r| a.dropout_add(g.x, &r, &b));
    "": |g, a, b, c| Generator::new(a.device(), 1).and_then(|r| r.uniform(&g.shape[..], g.dtype));
    "": |g, a, b, c| Generator::new(a.device(), 1).and_then(|r| r.normal_into(&a));
    "set_requires_grad": |g, a, b, c| a.set_requires_grad(g.flag);
    "set_grad": |g, a, b, c| a.set_grad(&b);
    "": |g, a, b, c| a.zero_grad();
    "": |g, a, b, c| a.backward();
    "": |g, a, b, c| a.backward_with(&b);
    "": |g, a, b, c| a.mul(&b).and_then(|y| y.sum(g.axis)).and_then(|y| y.backward_with(&y.ones_like()?));
    "": |g, a, b, c| a.unfold(g.axis, g.n, g.m).and_then(|y| y.backward_with(&y.ones_like()?));
    "": |g, a, b, c| a.linear(&b, Some(&c), Activation::Silu, None).and_then(|y| y.mean(())).and_then(|y| y.backward());
};

/// The fault in the way that a method handled its arguments; counts the successful calls.
fn complaint(
    name: &str,
    method: fn(&Arguments, &Device) -> Outcome,
    g: &Arguments,
    device: &Device,
    fine: &mut usize,
) -> Option<String> {
    let result = catch_unwind(AssertUnwindSafe(|| match g.record {
        true => method(g, device),
        false => no_grad(|| method(g, device)),
    }));
    // Errors that only a GPU can see are reported when the host waits.
    let waited = result.map(|outcome| {
        let late = device.synchronize().err();
        outcome.or(late)
    });
    let error = match waited {
        Err(_) => return Some(format!("{name} panicked")),
        Ok(None) => {
            *fine += 1;
            return None;
        }
        Ok(Some(error)) => error,
    };
    let text = error.to_string();
    let names_the_operation = match &error {
        Error::Internal { .. } => return Some(format!("{name}: an internal error: {}", start(&text))),
        // It names the device and the size: no operation is at fault.
        Error::OutOfMemory { .. } => true,
        _ => text.starts_with(&format!("{name}:")) || name.is_empty() && text.contains(": "),
    };
    if !names_the_operation {
        return Some(format!("{name}: an error does not name it: {}", start(&text)));
    }
    (text.len() <= 20).then(|| format!("{name}: {text}"))
}

/// Enough of a message to tell it from others.
fn start(text: &str) -> String {
    text.split(|c: char| c == '[' || c.is_ascii_digit()).next().unwrap_or_default().to_string()
}

/// Collects all complaints, each with the first arguments that caused it.
#[test]
fn any_arguments_give_a_result_or_an_error_that_names_the_operation() {
    const CASES: usize = 400;
    let _turn = turn();
    // The panics that the test looks for would each print a page.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| ()));
    let mut runner = TestRunner::deterministic();
    let mut complaints = BTreeMap::new();
    let mut fine = vec![0; METHODS.len()];
    for _ in 0..CASES {
        let g = arguments().new_tree(&mut runner).unwrap().current();
        for device in devices() {
            for ((name, method), fine) in METHODS.iter().zip(&mut fine) {
                if let Some(c) = complaint(name, *method, &g, &device, fine) {
                    complaints.entry(c).or_insert_with(|| g.clone());
                }
            }
        }
    }
    std::panic::set_hook(hook);
    // Otherwise the later checks were never reached.
    let never: Vec<_> = METHODS
        .iter()
        .zip(fine)
        .enumerate()
        .filter(|(_, (_, n))| *n == 0)
        .map(|(i, ((m, _), _))| (i, m))
        .collect();
    assert!(never.is_empty(), "methods that never gave a result: {never:?}");
    let list: Vec<String> = complaints.iter().map(|(c, g)| format!("{c}\n    {g:?}")).collect();
    assert!(list.is_empty(), "{} complaints:\n{}", list.len(), list.join("\n"));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn shapes_print_and_count_whatever_they_hold(dims in prop::collection::vec(size(), 0..6)) {
        let shape = Shape::from(dims.clone());
        let _turn = turn();
        let _ = (shape.numel(), shape.to_string(), format!("{shape:?}"), shape.rank());
        for device in devices() {
            let t = Tensor::zeros(&dims[..], DType::F32, &device);
            let huge = dims.iter().any(|&d| d > 4);
            if huge && !dims.contains(&0) {
                prop_assert!(t.is_err());
            }
            if let Ok(t) = t {
                let _ = (t.to_string(), format!("{t:?}"));
            }
        }
    }

    #[test]
    fn tensors_print_whatever_their_layout(r in recipe()) {
        let _turn = turn();
        for device in devices() {
            let t = make(&r, &device);
            let text = t.to_string();
            prop_assert!(text.ends_with(&format!(" {} {}", t.dtype(), t.shape())), "{}", text);
            prop_assert!(!text.contains('<'), "{}", text);
        }
    }
}

#[test]
fn errors_say_what_where_and_what_to_do() {
    let device = &devices().next().unwrap();
    let x = Tensor::zeros([2, 3], DType::F32, device).unwrap();
    let y = Tensor::zeros([4], DType::F32, device).unwrap();
    let w = Tensor::zeros([2, 3], DType::F64, device).unwrap();
    let text = |e: Error| e.to_string();
    let says = |e: Error, parts: &[&str]| {
        let t = e.to_string();
        for part in parts {
            assert!(t.contains(part), "{t:?} lacks {part:?}");
        }
    };
    says(x.add(&y).unwrap_err(), &["add", "[2, 3]", "[4]", "broadcast"]);
    says(x.add(&w).unwrap_err(), &["add", "f32", "f64", "to_dtype"]);
    says(x.matmul(&x).unwrap_err(), &["matmul", "[2, 3]"]);
    says(x.reshape([7]).unwrap_err(), &["reshape", "[2, 3]", "[7]"]);
    says(x.sum(5).unwrap_err(), &["sum", "axis 5", "2 dimensions"]);
    says(x.sum([0, 0]).unwrap_err(), &["sum", "twice"]);
    says(x.narrow(1, 2, 2).unwrap_err(), &["narrow", "2..2+2", "axis 1"]);
    says(x.transpose(0, 1).unwrap().view([6]).unwrap_err(), &["view", "reshape"]);
    says(x.to_vec::<f64>().unwrap_err(), &["to_vec", "f32", "f64"]);
    says(x.to_scalar::<f32>().unwrap_err(), &["to_scalar", "6 elements", "to_vec"]);
    says(x.backward().unwrap_err(), &["backward", "sum"]);
    says(Tensor::zeros([1 << 40, 1 << 40], DType::F32, device).unwrap_err(), &["zeros", "smaller"]);
    says(
        Tensor::zeros([1 << 60], DType::U8, device).unwrap_err(),
        &["out of memory", &device.name(), "1152921504606846976"],
    );
    let endless = y.narrow(0, 0, 1).unwrap().broadcast_to([1 << 50]).unwrap();
    says(endless.to_vec::<f32>().unwrap_err(), &["out of memory", "4503599627370496"]);
    for (from, to) in [(250.0, 260.0), (-2.0, 2.0)] {
        says(Tensor::arange(from, to, 1.0, DType::U8, device).unwrap_err(), &["arange", "range of u8"]);
    }
    assert_eq!(
        text(y.sum(()).unwrap().squeeze(0).unwrap_err()),
        "squeeze: there is no axis 0, because a scalar has no axes"
    );
}

#[test]
fn what_a_dtype_has_no_meaning_for_is_a_typed_error() {
    let _turn = turn();
    for device in devices() {
        let ids = Tensor::zeros([2, 2], DType::I64, &device).unwrap();
        let flags = Tensor::zeros([2, 2], DType::Bool, &device).unwrap();
        let halves = Tensor::zeros([2, 2], DType::BF16, &device).unwrap();
        assert!(matches!(ids.exp(), Err(Error::Unsupported { op: "exp", dtype: DType::I64, .. })));
        assert!(matches!(ids.mean(()), Err(Error::Unsupported { op: "mean", dtype: DType::I64, .. })));
        assert!(matches!(flags.add(&flags), Err(Error::Unsupported { op: "add", dtype: DType::Bool, .. })));
        assert!(matches!(flags.add_assign(&flags), Err(Error::Unsupported { op: "add_assign", .. })));
        assert!(matches!(flags.neg(), Err(Error::Unsupported { op: "neg", dtype: DType::Bool, .. })));
        assert!(matches!(
            Tensor::arange(0.0, 3.0, 1.0, DType::Bool, &device),
            Err(Error::Unsupported { op: "arange", .. })
        ));
        assert!(matches!(
            halves.add(&ids),
            Err(Error::DTypeMismatch { op: "add", lhs: DType::BF16, rhs: DType::I64, .. })
        ));
        assert!(matches!(halves.add_assign(&ids), Err(Error::DTypeMismatch { op: "add_assign", .. })));
        assert!(matches!(halves.matmul(&ids), Err(Error::DTypeMismatch { op: "matmul", .. })));
        assert!(matches!(
            Tensor::full([2], 300.0, DType::U8, &device),
            Err(Error::InvalidArgument { op: "full", .. })
        ));
        assert!(matches!(ids.fill(f64::NAN), Err(Error::InvalidArgument { op: "fill", .. })));
    }
}
