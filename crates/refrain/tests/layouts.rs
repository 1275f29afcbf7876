//! An operation on a view gives the same bits as on a contiguous copy of the view, whatever the strides are. Kernels on the CPU
//! read and write most views where they lie.

mod common;

use common::{devices, tensor, values};
use refrain::{DType, Device, DeviceKind, Error, Result, Tensor};

const DTYPES: [DType; 6] = [DType::F64, DType::F32, DType::BF16, DType::F16, DType::I64, DType::U8];

/// Small whole numbers and halves without a pattern, some of them equal.
fn numbers(shape: &[usize], seed: usize, dtype: DType, device: &Device) -> Tensor {
    let places = 0..shape.iter().product();
    let number = |i: usize| ((i + 31 * seed) as f64 * 0.618_033_988_75).fract() * 12.0;
    let numbers: Vec<f64> = places.map(|i| (number(i) * 2.0).floor() / 2.0).collect();
    match dtype.is_float() {
        true => tensor(&numbers.iter().map(|v| v - 3.0).collect::<Vec<_>>(), shape, dtype, device),
        false => tensor(&numbers.iter().map(|v| v.floor()).collect::<Vec<_>>(), shape, dtype, device),
    }
}

type View = (&'static str, fn(&Tensor) -> Result<Tensor>);

/// Views of `[70, 130]` with rows that are long enough to be read where they lie, and of all other kinds.
const MATRICES: &[View] = &[
    ("contiguous", |x| Ok(x.clone())),
    ("narrow columns", |x| x.narrow(1, 5, 100)),
    ("narrow rows", |x| x.narrow(0, 3, 40)),
    ("few columns", |x| x.narrow(1, 7, 9)),
    ("transposed", |x| x.transpose(0, 1)),
    ("transposed and narrow", |x| x.transpose(0, 1)?.narrow(1, 2, 66)?.narrow(0, 1, 90)),
    ("one row", |x| x.narrow(0, 4, 1)?.broadcast_to([70, 130])),
    ("one column", |x| x.narrow(1, 4, 1)?.broadcast_to([70, 130])),
    ("one element", |x| x.narrow(1, 4, 1)?.narrow(0, 9, 1)?.broadcast_to([70, 130])),
    ("every other column", |x| x.unfold(1, 1, 2)?.squeeze(2)),
    ("windows of columns", |x| x.unfold(1, 16, 8)),
];

/// Views of `[3, 70, 66]`.
const CUBES: &[View] = &[
    ("order 1 0 2", |x| x.permute(&[1, 0, 2])),
    ("order 2 0 1", |x| x.permute(&[2, 0, 1])),
    ("order 0 2 1", |x| x.permute(&[0, 2, 1])),
    ("narrow in the middle", |x| x.narrow(1, 1, 65)),
    ("order 2 1 0, narrow", |x| x.permute(&[2, 1, 0])?.narrow(0, 2, 5)),
];

type Unary = (&'static str, fn(&Tensor) -> Result<Tensor>);

const UNARY: &[Unary] = &[
    ("neg", |x| x.neg()),
    ("square", |x| x.square()),
    ("exp", |x| x.exp()),
    ("softplus", |x| x.softplus()),
    ("tan", |x| x.tan()),
    ("atan", |x| x.atan()),
    ("asinh", |x| x.asinh()),
    ("mish", |x| x.mish()),
    ("remainder_scalar", |x| x.remainder_scalar(3.0)),
    ("atan2_scalar", |x| x.atan2_scalar(-0.5)),
    ("elu", |x| x.elu(0.7)),
    ("leaky_relu", |x| x.leaky_relu(0.1)),
    ("erf", |x| x.erf()),
    ("erfc", |x| x.erfc()),
    ("erfinv", |x| x.erfinv()),
    ("clamp", |x| x.clamp(1.0, 4.0)),
    ("add_scalar", |x| x.add_scalar(2.0)),
    ("lt_scalar", |x| x.lt_scalar(2.0)),
    ("copy", |x| x.copy()),
    ("to f64", |x| x.to_dtype(DType::F64)),
    ("to f32", |x| x.to_dtype(DType::F32)),
    ("to bf16", |x| x.to_dtype(DType::BF16)),
    ("to i64", |x| x.to_dtype(DType::I64)),
    ("to u8", |x| x.to_dtype(DType::U8)),
    ("to bool", |x| x.to_dtype(DType::Bool)),
    ("sum", |x| x.sum(())),
    ("sum 0", |x| x.sum(0)),
    ("sum -1", |x| x.sum(-1)),
    ("mean 0", |x| x.mean(0)),
    ("mean -1", |x| x.mean(-1)),
    ("max", |x| x.max(())),
    ("max 0", |x| x.max(0)),
    ("min -1", |x| x.min(-1)),
    ("argmax", |x| x.argmax(())),
    ("argmax 0", |x| x.argmax(0)),
    ("argmin -1", |x| x.argmin(-1)),
    ("var 0", |x| x.var(0, 1)),
    ("var -1", |x| x.var(-1, 1)),
    ("prod 0", |x| x.prod(0)),
    ("any -1", |x| x.any(-1)),
    ("softmax 0", |x| x.softmax(0)),
    ("softmax -1", |x| x.softmax(-1)),
    ("log_softmax -1", |x| x.log_softmax(-1)),
    ("l2_normalize 0", |x| x.l2_normalize(0, 1e-6)),
    ("l2_normalize -1", |x| x.l2_normalize(-1, 1e-6)),
];

type Binary = (&'static str, fn(&Tensor, &Tensor) -> Result<Tensor>);

const BINARY: &[Binary] = &[
    ("add", |a, b| a.add(b)),
    ("sub", |a, b| a.sub(b)),
    ("div", |a, b| a.div(b)),
    ("maximum", |a, b| a.maximum(b)),
    ("remainder", |a, b| a.remainder(b)),
    ("atan2", |a, b| a.atan2(b)),
    ("logaddexp", |a, b| a.logaddexp(b)),
    ("lt", |a, b| a.lt(b)),
    ("eq", |a, b| a.eq(b)),
    ("logical_and", |a, b| a.logical_and(b)),
    ("where_cond", |a, b| a.lt(b)?.where_cond(a, b)),
];

/// The shape, and the bits of all elements. `None` for a dtype that the operation refuses.
fn outcome(result: Result<Tensor>) -> Option<(Vec<usize>, Vec<u64>)> {
    match result {
        Ok(y) => Some((y.dims().to_vec(), values(&y).into_iter().map(f64::to_bits).collect())),
        Err(Error::Unsupported { .. }) => None,
        Err(e) => panic!("{e}"),
    }
}

/// All views of the numbers, in one dtype.
fn all_views(seed: usize, dtype: DType, device: &Device) -> Vec<(&'static str, Tensor)> {
    let (matrix, cube) =
        (numbers(&[70, 130], seed, dtype, device), numbers(&[3, 70, 66], seed, dtype, device));
    let matrices = MATRICES.iter().map(|(name, view)| (*name, view(&matrix).unwrap()));
    let cubes = CUBES.iter().map(|(name, view)| (*name, view(&cube).unwrap()));
    matrices.chain(cubes).collect()
}

#[test]
fn operations_on_views_give_the_bits_of_operations_on_copies() {
    for device in devices() {
        for dtype in DTYPES {
            for (layout, x) in all_views(0, dtype, &device) {
                let copy = x.copy().unwrap();
                assert!(copy.is_contiguous());
                for (name, f) in UNARY {
                    assert_eq!(outcome(f(&x)), outcome(f(&copy)), "{name} of {dtype}, {layout}, on {device}");
                }
            }
        }
    }
}

#[test]
fn operations_on_two_views_give_the_bits_of_operations_on_copies() {
    for device in devices() {
        for dtype in DTYPES {
            let (a, b) = (all_views(0, dtype, &device), all_views(1, dtype, &device));
            let pairs = a.iter().flat_map(|a| b.iter().map(move |b| (a, b)));
            for ((first, a), (second, b)) in pairs.filter(|((_, a), (_, b))| a.shape() == b.shape()) {
                let copies = (a.copy().unwrap(), b.copy().unwrap());
                for (name, f) in BINARY {
                    let told = || format!("{name} of {dtype}, {first} and {second}, on {device}");
                    assert_eq!(outcome(f(a, b)), outcome(f(&copies.0, &copies.1)), "{}", told());
                }
            }
        }
    }
}

/// Sums that are rounded depend on their order, which is that of a row-major operand.
#[test]
fn sums_of_transposed_operands_have_the_bits_of_sums_of_copies() {
    let reductions: [View; 6] = [
        ("sum 0", |x| x.sum(-2)),
        ("sum 1", |x| x.sum(-1)),
        ("mean 0", |x| x.mean(-2)),
        ("mean 1", |x| x.mean(-1)),
        ("var 0", |x| x.var(-2, 1)),
        ("var 1", |x| x.var(-1, 1)),
    ];
    // Of short and of long columns; some have a part of one column left, or more elements than are copied at a time.
    let shapes: [&[usize]; 8] =
        [&[49, 1100], &[133, 300], &[65, 2048], &[3, 2100], &[1, 40], &[2, 33, 1000], &[3, 49, 20], &[0, 9]];
    for device in devices() {
        for dtype in [DType::F64, DType::F32, DType::BF16, DType::F16] {
            for shape in shapes {
                let x = numbers(shape, 4, dtype, &device).div_scalar(7.3).unwrap().transpose(-2, -1).unwrap();
                let copy = x.copy().unwrap();
                for (name, f) in reductions {
                    assert_eq!(outcome(f(&x)), outcome(f(&copy)), "{name} of {dtype} {shape:?} on {device}");
                }
            }
        }
    }
}

/// Destinations with gaps, in another order, and in place. What is between their elements stays.
#[test]
fn results_go_into_views_as_into_contiguous_memory() {
    for device in devices() {
        for dtype in DTYPES {
            for (layout, view) in MATRICES.iter().chain(CUBES) {
                let shape: &[usize] = if layout.contains("order") || layout.contains("middle") {
                    &[3, 70, 66]
                } else {
                    &[70, 130]
                };
                if layout.contains("one") || layout.contains("windows") {
                    continue; // They repeat memory.
                }
                let whole = || numbers(shape, 2, dtype, &device);
                let x = numbers(view(&whole()).unwrap().dims(), 3, dtype, &device);
                type Write = fn(&Tensor, &Tensor) -> Result<()>;
                let writes: [(&str, Write); 5] = [
                    ("copy_from", |x, to| to.copy_from(x)),
                    ("add_into", |x, to| x.add_into(x, to)),
                    ("add_assign", |x, to| to.add_assign(x)),
                    ("in place", |x, to| to.mul_into(x, to)),
                    ("fill", |_, to| to.fill(2.0)),
                ];
                for (name, write) in writes {
                    let (whole, untouched) = (whole(), whole());
                    let to = view(&whole).unwrap();
                    let contiguous = to.copy().unwrap();
                    write(&x, &to).unwrap();
                    write(&x, &contiguous).unwrap();
                    let told = || format!("{name} of {dtype} into {layout} on {device}");
                    assert_eq!(values(&to), values(&contiguous), "{}", told());
                    view(&untouched).unwrap().copy_from(&contiguous).unwrap();
                    assert_eq!(values(&whole), values(&untouched), "{}: elements beside it", told());
                }
            }
        }
    }
}

/// An elementwise result has the strides of its operands on the CPU, a copy is always row-major.
#[test]
fn elementwise_results_lie_as_their_operands() {
    let x = numbers(&[3, 70, 66], 0, DType::F32, &Device::cpu());
    for order in [[1, 0, 2], [2, 0, 1], [0, 2, 1]] {
        let x = x.permute(&order).unwrap();
        let results = [
            x.neg(),
            x.add(&x),
            x.lt_scalar(1.0),
            x.to_dtype(DType::BF16),
            x.lt(&x).unwrap().where_cond(&x, &x),
        ];
        for y in results {
            assert_eq!(y.unwrap().strides(), x.strides());
        }
        assert!(x.copy().unwrap().is_contiguous());
        // Operands that lie differently, or with gaps.
        assert!(x.add(&x.copy().unwrap()).unwrap().is_contiguous());
        assert!(x.narrow(0, 0, 2).unwrap().narrow(2, 0, 2).unwrap().neg().unwrap().is_contiguous());
    }
    for device in devices().filter(|d| d.kind() != DeviceKind::Cpu) {
        let x = numbers(&[3, 70], 0, DType::F32, &device).transpose(0, 1).unwrap();
        assert!(x.neg().unwrap().is_contiguous(), "{device}");
    }
}
