//! Fused launches have the bits of their parts, on every device.
//!
//! Eager code runs the parts, each as a launch of its own. So a recorded step is compared with the eager code, bit for bit.

mod batch_norm;
#[path = "../common/mod.rs"]
mod common;
mod norms;
mod products;
mod stages;
mod sums;

use std::fmt;

use common::{counting, devices, tensor, values};
use refrain::{DType, Device, DeviceKind, Generator, Result, Step, Tensor};

/// A sequence of numbers from a seed (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014).
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    fn pick<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len())]
    }
}

const DTYPES: [DType; 6] = [DType::F32, DType::F64, DType::BF16, DType::F16, DType::I64, DType::Bool];

/// Shapes: empty, of one element, odd ones, and some for loops with 16 bytes at a time.
const SHAPES: [&[usize]; 10] =
    [&[3, 5, 7], &[1], &[0, 4], &[2, 8, 16], &[64], &[1, 1, 1], &[33], &[4, 1, 6], &[5, 32], &[2, 3, 4, 8]];

/// The tensors from outside of a random step.
struct State {
    /// Those that the step only reads, as views of the shape: whole, rows, columns, transposed, a window.
    read: Vec<Tensor>,
    /// Those that it also writes to.
    written: Vec<Tensor>,
    /// For each axis, as many places as it has.
    indices: Vec<Tensor>,
    generator: Generator,
}

fn filled(shape: &[usize], dtype: DType, salt: usize, device: &Device) -> Tensor {
    let n: usize = shape.iter().product();
    let value = |i: usize| match dtype {
        DType::Bool => f64::from((i * 5 + salt).is_multiple_of(3)),
        DType::I64 => ((i * 7 + salt * 3) % 19) as f64 - 9.0,
        // Products and sums of these are rounded.
        _ => ((i * 37 + salt * 11) % 101) as f64 / 29.0 - 1.7,
    };
    tensor(&(0..n).map(value).collect::<Vec<_>>(), shape.to_vec(), dtype, device)
}

impl State {
    fn new(shape: &[usize], device: &Device) -> State {
        let mut read = Vec::new();
        for (salt, dtype) in DTYPES.into_iter().enumerate() {
            let with = |axes: &dyn Fn(usize) -> usize| {
                shape.iter().enumerate().map(|(a, _)| axes(a)).collect::<Vec<_>>()
            };
            let last = shape.len() - 1;
            read.push(filled(shape, dtype, salt, device));
            let row = filled(&with(&|a| if a == last { shape[a] } else { 1 }), dtype, salt + 1, device);
            read.push(row.broadcast_to(shape.to_vec()).unwrap());
            let column = filled(&with(&|a| if a == last { 1 } else { shape[a] }), dtype, salt + 2, device);
            read.push(column.broadcast_to(shape.to_vec()).unwrap());
            let reversed: Vec<usize> = shape.iter().rev().copied().collect();
            let turned = filled(&reversed, dtype, salt + 3, device);
            let axes: Vec<isize> = (0..shape.len() as isize).rev().collect();
            read.push(turned.permute(&axes).unwrap());
            let larger: Vec<usize> = shape.iter().map(|d| d + 1).collect();
            let mut window = filled(&larger, dtype, salt + 4, device);
            for (axis, &d) in shape.iter().enumerate() {
                window = window.narrow(axis as isize, 1, d).unwrap();
            }
            read.push(window);
        }
        let written = [DType::F32, DType::BF16, DType::I64].map(|dtype| filled(shape, dtype, 9, device));
        let indices = shape.iter().enumerate().map(|(axis, &d)| {
            let places: Vec<f64> = (0..d).map(|i| ((i * i + 3 * axis + 1) % d) as f64).collect();
            tensor(&places, vec![d], if axis == 0 { DType::I64 } else { DType::I32 }, device)
        });
        let indices = indices.collect();
        State { read, written: written.to_vec(), indices, generator: Generator::new(device, 7).unwrap() }
    }
}

/// Runs a random program of elementwise work, with some other operations between. The results are its last tensors.
fn random_program(seed: u64, shape: &[usize], state: &State) -> Result<Vec<Tensor>> {
    let mut numbers = Numbers(seed);
    let mut made: Vec<Tensor> = state.read.clone();
    for _ in 0..6 + numbers.below(30) {
        // The later ones more often, so that chains become long.
        let from = if numbers.below(3) > 0 { made.len() - made.len().min(8) } else { 0 };
        let x = made[from + numbers.below(made.len() - from)].clone();
        let same: Vec<Tensor> = made.iter().filter(|t| t.dtype() == x.dtype()).cloned().collect();
        let y = same[same.len() - 1 - numbers.below(same.len().min(6))].clone();
        let float = x.dtype().is_float();
        let arithmetic = x.dtype() != DType::Bool;
        let new = match numbers.below(24) {
            0..4 if arithmetic => match numbers.below(4) {
                0 => x.add(&y)?,
                1 => x.sub(&y)?,
                _ => x.mul(&y)?,
            },
            4 if arithmetic => x.mul_scalar(3.0)?,
            5 if arithmetic => x.add_scalar(-2.0)?,
            6 if float => x.tanh()?,
            7 if float => x.silu()?,
            8 if float => x.gelu()?,
            9 if arithmetic => x.neg()?,
            10 if float => x.abs()?.sqrt()?,
            11 => x.to_dtype(*numbers.pick(&DTYPES))?,
            12 => x.gt(&y)?.where_cond(&x, &y)?,
            13 if float => x.dropout(0.3, &state.generator)?,
            14 if float => x.dropout_add(0.5, &state.generator, &y)?,
            15 => x.copy()?,
            16 => {
                let flat = x.reshape([x.numel()])?;
                let moved = if arithmetic { flat.add(&flat)? } else { flat.copy()? };
                moved.reshape(shape.to_vec())?
            }
            17 => {
                let target = state.written.iter().find(|t| t.dtype() == x.dtype());
                match target {
                    Some(target) if numbers.below(2) == 0 => target.add_assign(&x)?,
                    Some(target) => target.copy_from(&x)?,
                    None => {}
                }
                target.map_or(Ok(x.clone()), |target| target.mul(&x))?
            }
            18 if arithmetic => {
                let mine = x.copy()?;
                mine.mul_assign(&y)?;
                mine.add_assign(&x)?;
                mine
            }
            19 if arithmetic => {
                // Windows of one tensor.
                let mine = x.add(&y)?;
                let half = shape[0] / 2;
                mine.narrow(0, 0, half)?.add_assign(&x.narrow(0, half, half)?)?;
                mine
            }
            20 if float => x.softmax(-1)?,
            21 | 22 if shape.iter().all(|&d| d > 0) => {
                let axis = numbers.below(shape.len());
                let picked = x.index_select(axis as isize, &state.indices[axis])?;
                if float { picked.mul(&y)? } else { picked }
            }
            23 => x.gt_scalar(0.0)?.where_cond(&x.ones_like()?, &y)?,
            _ => continue,
        };
        made.push(new);
    }
    let first = made.len() - made.len().min(4);
    Ok(made.split_off(first.max(state.read.len().min(made.len() - 1))))
}

fn bits(tensors: &[Tensor]) -> Vec<(DType, Vec<u64>)> {
    tensors.iter().map(|t| (t.dtype(), values(t).into_iter().map(f64::to_bits).collect())).collect()
}

/// Calls a step twice and compares it with the same eager code, bit for bit; each has operands and a generator of its own. Returns
/// after how many calls the program's text `is_fused`.
fn compare(
    case: &dyn fmt::Debug,
    device: &Device,
    state: impl Fn() -> Vec<Tensor>,
    run: impl Fn(&[Tensor], &Generator) -> Result<Vec<Tensor>>,
    is_fused: impl Fn(&str) -> bool,
) -> usize {
    let [eager, recorded] = [0, 1].map(|_| (state(), Generator::new(device, 5).unwrap()));
    let mut step = Step::new(device, |_| Ok(run(&recorded.0, &recorded.1)?));
    let mut fused = 0;
    for replay in 0..2 {
        let expected = bits(&run(&eager.0, &eager.1).unwrap());
        let outputs = step.call(&[]).unwrap();
        let found: Vec<Tensor> = (0..outputs.len()).map(|i| outputs.copy(i).unwrap()).collect();
        let program = step.program().unwrap();
        assert_eq!(bits(&found), expected, "{device}, {case:?}, replay {replay}\n{program}");
        fused += usize::from(is_fused(&program.to_string()));
    }
    step.finish().unwrap();
    fused
}

#[test]
fn random_steps_have_the_bits_of_eager_code() {
    let mut fused = 0;
    for device in devices() {
        for seed in 0..40 {
            let shape = SHAPES[seed as usize % SHAPES.len()];
            let [eager, recorded] = [0, 1].map(|_| State::new(shape, &device));
            let mut step = Step::new(&device, |_| Ok(random_program(seed, shape, &recorded)?));
            for replay in 0..2 {
                let expected = bits(&random_program(seed, shape, &eager).unwrap());
                let outputs = step.call(&[]).unwrap();
                let found: Vec<Tensor> = (0..outputs.len()).map(|i| outputs.copy(i).unwrap()).collect();
                let what = format!("{device}, seed {seed}, shape {shape:?}, replay {replay}");
                assert_eq!(bits(&found), expected, "{what}");
                assert_eq!(bits(&recorded.written), bits(&eager.written), "{what}");
            }
            let program = step.program().unwrap();
            fused += program.recorded_launches() - program.launch_count();
            step.finish().unwrap();
        }
    }
    assert!(
        fused > 100 || fusing().next().is_none(),
        "only {fused} launches were fused, so little was tested"
    );
}

/// The devices whose programs are fused, unless `REFRAIN_FUSE=0` says otherwise.
fn fusing() -> impl Iterator<Item = Device> {
    let is_off = std::env::var("REFRAIN_FUSE").is_ok_and(|v| v == "0");
    // To write kernels down, the CPU fuses as a GPU does.
    let writes_kernels = std::env::var_os("REFRAIN_KERNELS").is_some();
    devices().filter(move |d| !is_off && (d.kind() != DeviceKind::Cpu || writes_kernels))
}

/// Calls a step that takes no input, and compares its outputs with the eager ones. Returns the number of launches, that of
/// temporaries, and the table of launches.
fn launches(device: &Device, closure: impl Fn() -> Result<Vec<Tensor>>) -> (usize, usize, String) {
    let expected = bits(&closure().unwrap());
    let mut step = Step::new(device, |_| Ok(closure()?));
    let outputs = step.call(&[]).unwrap();
    let found: Vec<Tensor> = (0..outputs.len()).map(|i| outputs.copy(i).unwrap()).collect();
    let program = step.program().unwrap();
    assert_eq!(bits(&found), expected, "{device}: {program}");
    let seen = (program.launch_count(), program.temporaries(), program.to_string());
    step.finish().unwrap();
    seen
}

#[test]
fn a_chain_is_one_launch_that_stores_its_end_alone() {
    for device in fusing() {
        for dtype in [DType::F32, DType::BF16] {
            let [a, b, r] = [0, 1, 2].map(|salt| filled(&[6, 40], dtype, salt, &device));
            let row = filled(&[40], dtype, 3, &device);
            let gated = || Ok(vec![a.silu()?.mul(&b.add(&row)?)?.mul_scalar(0.3)?.add(&r)?]);
            let (count, temporaries, table) = launches(&device, gated);
            assert_eq!((count, temporaries), (1, 1), "{table}");
            assert!(table.contains("fused(silu, add, mul, mul, add)"), "{table}");
            assert!(
                table.contains(&format!("silu: {dtype} [6, 40] -> {dtype} [6, 40] in registers")),
                "{table}"
            );
        }
    }
}

#[test]
fn slices_that_are_picked_join_the_chain_behind_them() {
    for device in fusing() {
        for dtype in [DType::F32, DType::BF16, DType::F64] {
            // Slices of whole vectors, of odd lengths, and single elements; along the first axis and in the middle.
            for (shape, axis) in [([20, 4, 16], 0), ([20, 4, 16], 1), ([9, 5, 7], 1), ([6, 7, 1], 1)] {
                let table = filled(&shape, dtype, 0, &device);
                let mut picked = shape;
                picked[axis] = 30;
                let places: Vec<f64> = (0..30).map(|i| f64::from(i * i % shape[axis] as i32)).collect();
                let index = tensor(&places, vec![30], DType::I64, &device);
                let weight = filled(&[30], dtype, 1, &device);
                let (mut column, axis) = ([1; 3], axis as isize);
                column[axis as usize] = 30;
                let beside = filled(&picked, dtype, 2, &device);
                let (count, _, table) = launches(&device, || {
                    let said = table.index_select(axis, &index)?.mul(&weight.reshape(column)?)?;
                    Ok(vec![said.add(&beside)?])
                });
                assert_eq!(count, 1, "{table}");
                assert!(table.contains("fused(index_select, mul, add)"), "{table}");
            }
        }
        // A table that the step has just made, two tables, and one that is written to.
        let [x, y] = [0, 1].map(|salt| filled(&[8, 12], DType::F32, salt, &device));
        let index = tensor(&[7.0, 0.0, 3.0, 3.0], vec![4], DType::I32, &device);
        let (count, _, table) = launches(&device, || {
            let [a, b] = [x.exp()?.index_select(0, &index)?, y.index_select(0, &index)?];
            Ok(vec![a.mul(&b)?])
        });
        assert_eq!(count, 2, "{table}");
        assert!(table.contains("fused(index_select, index_select, mul)"), "{table}");
        let ones = tensor(&[1.0; 8], vec![8], DType::I64, &device);
        let (_, _, table) = launches(&device, || {
            let state = x.copy()?;
            let picked = state.index_select(0, &ones)?;
            state.copy_from(&picked.mul(&y)?)?;
            Ok(vec![state])
        });
        assert!(table.contains("fused(index_select, mul)"), "{table}");
    }
}

#[test]
fn an_index_out_of_range_is_an_error_of_its_own_operation_in_a_chain_as_well() {
    for device in fusing().filter(|device| device.kind() != DeviceKind::Cpu) {
        let x = filled(&[4, 6], DType::F32, 0, &device);
        let index = tensor(&[1.0, 3.0, 0.0], vec![3], DType::I64, &device);
        let mut step =
            Step::new(&device, |_| Ok(vec![x.index_select(0, &index)?.mul_scalar(2.0)?.add_scalar(1.0)?]));
        step.call(&[]).unwrap();
        device.synchronize().unwrap();
        let table = step.program().unwrap().to_string();
        assert!(table.contains("fused(index_select, mul, add)"), "{table}");
        index.copy_from(&tensor(&[1.0, 4.0, 0.0], vec![3], DType::I64, &device)).unwrap();
        let error = step.call(&[]).and_then(|_| device.synchronize()).unwrap_err().to_string();
        assert!(error.starts_with("index_select") && error.contains('4'), "{error}");
        index.copy_from(&tensor(&[1.0, 2.0, 0.0], vec![3], DType::I64, &device)).unwrap();
        step.call(&[]).unwrap();
        step.finish().unwrap();
    }
}

#[test]
fn products_and_sums_of_different_operations_are_rounded_one_by_one() {
    for device in fusing() {
        for dtype in [DType::F32, DType::F64, DType::BF16, DType::F16] {
            let [a, b, c] = [0, 1, 2].map(|salt| filled(&[1000], dtype, salt, &device));
            let (count, _, table) = launches(&device, || Ok(vec![a.mul(&b)?.add(&c)?.mul(&a)?.sub(&b)?]));
            assert_eq!(count, 1, "{table}");
            // The values are such that a sum without rounding its product gives others.
            if dtype == DType::F32 {
                let [a, b, c] = [&a, &b, &c].map(|t| t.to_vec::<f32>().unwrap());
                let contracted =
                    (0..1000).filter(|&i| a[i].mul_add(b[i], c[i]) != a[i] * b[i] + c[i]).count();
                assert!(contracted > 100, "{contracted}");
            }
        }
    }
}

#[test]
fn an_intermediate_that_somebody_else_reads_is_stored() {
    for device in fusing() {
        let x = filled(&[8, 16], DType::F32, 0, &device);
        // By another launch, and by the caller.
        let (count, temporaries, table) = launches(&device, || {
            let y = x.tanh()?;
            Ok(vec![y.square()?.neg()?, y.softmax(1)?])
        });
        assert_eq!((count, temporaries), (2, 3), "{table}");
        let (count, temporaries, table) = launches(&device, || {
            let y = x.tanh()?;
            Ok(vec![y.square()?.neg()?, y])
        });
        assert_eq!((count, temporaries), (1, 2), "{table}");
    }
}

#[test]
fn work_that_another_element_needs_is_not_fused() {
    for device in fusing() {
        let x = filled(&[12, 12], DType::F32, 0, &device);
        let state = filled(&[12, 12], DType::F32, 1, &device);
        // Transposed, a window of it, broadcast.
        let (count, _, table) = launches(&device, || {
            let y = x.tanh()?;
            Ok(vec![y.transpose(0, 1)?.mul(&x)?, y.narrow(0, 1, 4)?.exp()?, y.narrow(0, 2, 1)?.add(&x)?])
        });
        assert_eq!(count, 4, "{table}");
        // A window of a tensor that the chain writes to as a whole.
        let (count, _, table) = launches(&device, || {
            state.copy_from(&x)?;
            state.narrow(0, 0, 6)?.add_assign(&state.narrow(0, 6, 6)?)?;
            state.mul_scalar(2.0).map(|y| vec![y])
        });
        assert_eq!(count, 3, "{table}");
    }
}

#[test]
fn dropout_joins_what_comes_before_and_after_it() {
    for device in fusing() {
        // At the ends of its range, a probability is rounded to one at which no or every element is dropped.
        let tiny = 2f64.powi(-40);
        for (shape, dtype, p) in [
            ([6usize, 32], DType::F32, 0.3),
            ([6, 32], DType::BF16, 0.3),
            ([5, 7], DType::F16, 0.3),
            ([4, 6], DType::F64, 0.3),
            ([6, 32], DType::F32, tiny),
            ([6, 32], DType::F32, 1.0 - tiny),
        ] {
            let x = filled(&shape, dtype, 0, &device);
            let row = filled(&shape[1..], dtype, 1, &device);
            let [eager, recorded] = [0, 1].map(|_| Generator::new(&device, 3).unwrap());
            let block = |generator: &Generator| {
                let y = x.detach();
                y.set_requires_grad(true)?;
                let z = y.add(&row)?.dropout(p, generator)?.add(&x)?;
                z.mul_scalar(2.0)?.backward_with(&x)?;
                Ok::<_, refrain::Error>(vec![z, y.grad().ok_or_else(|| unreachable!("a leaf"))?])
            };
            let mut step = Step::new(&device, |_| Ok(block(&recorded)?));
            for _ in 0..3 {
                let expected = bits(&block(&eager).unwrap());
                let outputs = step.call(&[]).unwrap();
                let found = [outputs.copy(0).unwrap(), outputs.copy(1).unwrap()];
                assert_eq!(bits(&found), expected, "{device} {dtype} {shape:?} {p}");
            }
            let program = step.program().unwrap();
            // The chain forward, the chain backward, and the generator that moves on.
            assert!(program.launch_count() <= 3, "{program}");
            step.finish().unwrap();
        }
    }
}

#[test]
fn a_fused_step_can_be_profiled_and_drawn() {
    for device in fusing() {
        let x = counting(1000, &device);
        let mut step = Step::new(&device, |_| Ok(vec![x.sin()?.add(&x)?.sum(())?]));
        let profile = step.profile(&[], 2).unwrap();
        assert!(profile.lines().iter().any(|line| line.operation == "fused(sin, add, sum)"), "{profile}");
        let program = step.program().unwrap();
        assert_eq!((program.launch_count(), program.recorded_launches(), program.dead_launches()), (1, 3, 0));
        assert!(program.to_dot().contains("fused(sin, add, sum)"), "{}", program.to_dot());
        step.finish().unwrap();
    }
}
