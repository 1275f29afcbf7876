//! Batch norm and its backward pass, with elementwise launches behind them in their last kernels, have the bits of the single launches.

use refrain::{DType, Device, Generator, Result, Step, Tensor};

use super::common::{devices, sanitized};
use super::{Numbers, bits, filled, fusing};

/// Shapes with the axis of the channels: few channels and many, lines of one channel and of all, odd numbers of them.
const SHAPES: [([usize; 3], isize); 12] = [
    ([12, 7, 16], 2),
    ([4, 8, 24], 1),
    ([3, 5, 7], 1),
    ([40, 9, 5], 2),
    ([300, 10, 16], -1),
    ([2, 3, 600], -1),
    ([20, 33, 64], 1),
    ([64, 12, 1], 0),
    ([900, 8, 4], 2),
    ([6, 1, 32], 1),
    // Of each row, threads take two or four numbers at once.
    ([30, 40, 6], 2),
    ([20, 33, 12], -1),
];

#[derive(Clone, Copy, Debug)]
struct Case {
    seed: u64,
    shape: [usize; 3],
    axis: isize,
    dtype: DType,
}

/// Tensors from outside of the step: some of the shape, one that is a row for all rows, and the parameters.
fn state(case: Case, device: &Device) -> Vec<Tensor> {
    let Case { shape, axis, dtype, .. } = case;
    let channels = shape[axis.rem_euclid(3) as usize];
    let parameters = if case.seed.is_multiple_of(2) && dtype != DType::F64 { DType::F32 } else { dtype };
    let mut state: Vec<Tensor> = (0..3).map(|salt| filled(&shape, dtype, salt, device)).collect();
    state.push(filled(&shape[2..], dtype, 3, device));
    state.extend([4, 5, 6].map(|salt| filled(&[channels], parameters, salt, device)));
    state.push(filled(&[channels], parameters, 7, device).square().unwrap().add_scalar(0.5).unwrap());
    state
}

fn run(case: Case, state: &[Tensor], random: &Generator) -> Result<Vec<Tensor>> {
    let mut numbers = Numbers(case.seed);
    let [x, other, dy, row, weight, bias, mean, var] = state else { unreachable!() };
    let leaves = [x, other, weight, bias].map(Tensor::detach);
    // Some parameters are frozen.
    let trained = if numbers.below(4) == 0 { 2 } else { 4 };
    leaves[..trained].iter().try_for_each(|t| t.set_requires_grad(true))?;
    let [x, other, weight, bias] = &leaves;
    let mut hidden = x.clone();
    for _ in 0..1 + numbers.below(3) {
        hidden = match numbers.below(8) {
            0 | 1 => hidden.dropout(0.3, random)?,
            2 | 3 => hidden.dropout_add(0.4, random, other)?,
            4 => hidden.silu()?,
            5 => hidden.mul(row)?,
            6 => hidden.mul(other)?,
            _ => hidden.mul_scalar(0.7)?,
        };
    }
    let training = numbers.below(4) > 0;
    let mut y = hidden.batch_norm(weight, bias, mean, var, case.axis, training, 0.1, 1e-3)?;
    for _ in 0..numbers.below(3) {
        y = match numbers.below(6) {
            0 | 1 => y.relu()?,
            2 => y.dropout(0.2, random)?,
            3 => y.add(other)?,
            4 => y.mul(row)?,
            _ => y.mul_scalar(1.3)?,
        };
    }
    if numbers.below(3) == 0 {
        // The gradient of batch norm is added to another one.
        y = y.add(&hidden.square()?)?;
    }
    y.backward_with(dy)?;
    let mut results = vec![y];
    results.extend(leaves.iter().filter_map(Tensor::grad));
    results.extend([mean.copy()?, var.copy()?]);
    Ok(results)
}

#[test]
fn random_steps_with_batch_norm_have_the_bits_of_eager_code() {
    let (mut forward, mut backward) = (0, 0);
    // Under a sanitizer, each kernel takes long.
    let seeds = if sanitized() { 4 } else { 3 * SHAPES.len() as u64 };
    let dtypes = [DType::F32, DType::BF16, DType::F16, DType::F64];
    for device in devices() {
        for (dtype, seed) in dtypes.iter().flat_map(|&dtype| (0..seeds).map(move |seed| (dtype, seed))) {
            let (shape, axis) = SHAPES[seed as usize % SHAPES.len()];
            let case = Case { seed, shape, axis, dtype };
            let [eager, recorded] =
                [0, 1].map(|_| (state(case, &device), Generator::new(&device, 5).unwrap()));
            let mut step = Step::new(&device, |_| Ok(run(case, &recorded.0, &recorded.1)?));
            for replay in 0..2 {
                let expected = bits(&run(case, &eager.0, &eager.1).unwrap());
                let outputs = step.call(&[]).unwrap();
                let found: Vec<Tensor> = (0..outputs.len()).map(|i| outputs.copy(i).unwrap()).collect();
                let program = step.program().unwrap().to_string();
                assert_eq!(bits(&found), expected, "{device}, {case:?}, replay {replay}\n{program}");
                forward += usize::from(program.contains("fused(batch_norm, "));
                backward += usize::from(program.contains("fused(batch_norm_backward"));
            }
            step.finish().unwrap();
        }
    }
    let all = fusing().count() * dtypes.len() * seeds as usize * 2;
    assert!(2 * backward >= all, "only {backward} of {all} steps had the gradient of batch norm with a tail");
    assert!(3 * forward >= all, "only {forward} of {all} steps had batch norm with a tail");
}

#[test]
fn what_follows_batch_norm_joins_it_in_training_and_in_evaluation() {
    for device in fusing() {
        for (dtype, training) in [DType::F32, DType::BF16].into_iter().flat_map(|d| [(d, true), (d, false)]) {
            for (shape, axis) in SHAPES {
                let state = state(Case { seed: 1, shape, axis, dtype }, &device);
                let [x, other, _, _, weight, bias, mean, var] = &state[..] else { unreachable!() };
                let run = |running: &[Tensor]| -> Result<Tensor> {
                    let [mean, var] = running else { unreachable!() };
                    x.batch_norm(weight, bias, mean, var, axis, training, 0.1, 1e-3)?.relu()?.add(other)
                };
                let [eager, recorded] = [0, 1].map(|_| vec![mean.copy().unwrap(), var.copy().unwrap()]);
                let mut step = Step::new(&device, |_| Ok(vec![run(&recorded)?]));
                let mut program = String::new();
                for replay in 0..2 {
                    let expected = run(&eager).unwrap();
                    let found = step.call(&[]).unwrap().copy(0).unwrap();
                    program = step.program().unwrap().to_string();
                    let story = format!("{device}, {dtype} {shape:?} {axis}, replay {replay}\n{program}");
                    assert_eq!(bits(&[found]), bits(&[expected]), "{story}");
                    assert_eq!(bits(&recorded), bits(&eager), "running statistics of {story}");
                }
                assert!(program.contains("fused(batch_norm, relu, add)"), "{program}");
                step.finish().unwrap();
            }
        }
    }
}

#[test]
fn the_gradient_of_dropout_joins_that_of_batch_norm() {
    for device in fusing() {
        for dtype in [DType::F32, DType::BF16] {
            let case = Case { seed: 0, shape: [12, 7, 16], axis: 2, dtype };
            let state = state(case, &device);
            let [x, _, dy, _, weight, bias, mean, var] = &state[..] else { unreachable!() };
            let random = Generator::new(&device, 3).unwrap();
            let gradient = |residual: bool| -> Result<Vec<Tensor>> {
                let leaves = [x, weight, bias].map(Tensor::detach);
                leaves.iter().try_for_each(|t| t.set_requires_grad(true))?;
                let [x, weight, bias] = &leaves;
                let hidden = x.mul_scalar(0.7)?;
                let hidden = match residual {
                    true => hidden.dropout_add(0.3, &random, &hidden)?,
                    false => hidden.dropout(0.3, &random)?,
                };
                let y = hidden.batch_norm(weight, bias, mean, var, 2, false, 0.1, 1e-3)?;
                y.backward_with(dy)?;
                Ok(leaves.iter().filter_map(Tensor::grad).collect())
            };
            let table = |residual: bool| {
                let mut step = Step::new(&device, |_| Ok(gradient(residual)?));
                step.call(&[]).unwrap();
                let table = step.program().unwrap().to_string();
                step.finish().unwrap();
                table
            };
            let without = table(false);
            assert!(without.contains("fused(batch_norm_backward, dropout_backward, mul)"), "{without}");
            let in_registers = format!("batch_norm_backward: {dtype} [12, 7, 16]");
            let line = without.lines().find(|line| line.contains(&in_registers));
            assert!(line.is_some_and(|line| line.contains("in registers")), "{without}");
            let with = table(true);
            assert!(with.contains("fused(batch_norm_backward, dropout_backward"), "{with}");
        }
    }
}
