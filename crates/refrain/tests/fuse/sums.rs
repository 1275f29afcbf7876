//! Sums of what elementwise work computes have the bits of the single launches.

use refrain::{DType, Device, IndexReduction, Result, Tensor};

use super::common::{devices, sanitized, tensor};
use super::{compare, filled, fusing, launches};

/// A table, the axis of its slices, how many positions there are, and how many entries.
struct Case {
    table: [usize; 3],
    axis: usize,
    positions: usize,
    entries: usize,
}

/// Slices of vectors and of single numbers, along the first axis and another; positions of a few entries and of many; and so many that
/// they share a block.
const CASES: [Case; 6] = [
    Case { table: [50, 4, 16], axis: 0, positions: 900, entries: 5000 },
    Case { table: [4, 30, 8], axis: 1, positions: 40, entries: 4100 },
    Case { table: [3, 20, 5], axis: 1, positions: 700, entries: 6000 },
    Case { table: [40, 7, 1], axis: 0, positions: 3, entries: 4200 },
    Case { table: [90, 1, 24], axis: 0, positions: 9000, entries: 5000 },
    Case { table: [20, 3, 90], axis: 0, positions: 60, entries: 4500 },
];

fn places(n: usize, below: usize, step: usize, dtype: DType, device: &Device) -> Tensor {
    // One of them far more often than others.
    let place = |i: usize| if i.is_multiple_of(40) { below - 1 } else { (i * i * step + i) % below };
    tensor(&(0..n).map(|i| place(i) as f64).collect::<Vec<_>>(), vec![n], dtype, device)
}

impl Case {
    /// The table, which slices are picked, where they are added, their weights, and what they are added to.
    fn state(&self, dtype: DType, device: &Device) -> Vec<Tensor> {
        let (mut to, mut weights) = (self.table, [1; 3]);
        (to[self.axis], weights[self.axis]) = (self.positions, self.entries);
        vec![
            filled(&self.table, dtype, 0, device),
            places(self.entries, self.table[self.axis], 3, DType::I64, device),
            places(self.entries, self.positions, 7, DType::I32, device),
            filled(&weights, dtype, 1, device),
            filled(&to, dtype, 2, device),
        ]
    }
}

#[test]
fn weighted_slices_are_added_without_being_stored() {
    for device in devices() {
        let fuses = fusing().any(|fusing| fusing == device);
        for case in &CASES[..if sanitized() { 2 } else { CASES.len() }] {
            for dtype in [DType::F32, DType::BF16, DType::F64] {
                let axis = case.axis as isize;
                // Elements that follow each other: rows that are too short are computed apart.
                let row: usize = case.table[case.axis + 1..].iter().product();
                let closes = 2 * usize::from(fuses && row >= 8);
                let run = |s: &[Tensor], with: &dyn Fn(Tensor) -> Result<Tensor>| -> Result<Vec<Tensor>> {
                    let said = with(s[0].index_select(axis, &s[1])?.mul(&s[3])?)?;
                    Ok(vec![s[4].index_add(axis, &s[2], &said)?])
                };
                let sizes = (case.table, case.axis, case.positions, dtype);
                let state = || case.state(dtype, &device);
                let fused = compare(
                    &sizes,
                    &device,
                    state,
                    |s, _| run(s, &Ok),
                    |program| program.contains("fused(index_select, mul, index_add)"),
                );
                assert_eq!(fused, closes, "{device}, {sizes:?}");
                let fused = compare(
                    &sizes,
                    &device,
                    state,
                    |s, random| run(s, &|said| said.tanh()?.dropout(0.4, random)),
                    |program| program.contains("fused(index_select, mul, tanh, dropout, index_add)"),
                );
                assert_eq!(fused, closes, "{device}, {sizes:?}");
                let fused = compare(
                    &sizes,
                    &device,
                    state,
                    |s, _| {
                        let said = s[0].index_select(axis, &s[1])?.mul(&s[3])?;
                        Ok(vec![s[4].index_reduce(axis, &s[2], &said, IndexReduction::Amax, false)?])
                    },
                    |program| program.contains("fused(index_select, mul, index_reduce)"),
                );
                assert_eq!(fused, closes, "{device}, {sizes:?}");
            }
        }
    }
}

#[test]
fn messages_and_their_gradients_pass_a_graph_without_being_stored() {
    for device in fusing() {
        let case = &CASES[4];
        let state = case.state(DType::F32, &device);
        let [table, from, to, weights, zeros] = &state[..] else { unreachable!() };
        let (_, _, text) = launches(&device, || {
            let nodes = table.detach();
            nodes.set_requires_grad(true)?;
            let said = nodes.index_select(0, from)?.mul(weights)?;
            zeros.index_add(0, to, &said)?.square()?.sum(())?.backward()?;
            nodes.grad().map_or(Ok(Vec::new()), |grad| Ok(vec![grad]))
        });
        for fused in [
            "fused(index_select, mul, index_add)",
            "fused(index_select, binary_backward, index_select_backward)",
        ] {
            assert!(text.contains(fused), "{text}");
        }
    }
}

#[test]
fn what_others_read_is_stored_and_added_from_there() {
    for device in fusing() {
        let state = CASES[0].state(DType::F32, &device);
        let [table, from, to, weights, base] = &state[..] else { unreachable!() };
        let said = || table.index_select(0, from)?.mul(weights);
        // An output, and one more that only the caller reads.
        let (count, _, text) = launches(&device, || {
            let said = said()?;
            Ok(vec![base.index_add(0, to, &said)?, said])
        });
        assert!(count == 3 && text.contains("fused(index_select, mul) "), "{text}");
        let (count, _, text) = launches(&device, || {
            let said = said()?;
            Ok(vec![base.index_add(0, to, &said.tanh()?)?, said])
        });
        assert!(count == 3 && text.contains("fused(index_select, mul, tanh) "), "{text}");
        // What is added to is also what is picked from.
        let own = places(5000, 900, 11, DType::I64, &device);
        let (_, _, text) = launches(&device, || {
            let sums = base.copy()?;
            let said = sums.index_select(0, &own)?.mul(weights)?;
            sums.index_add_into(0, to, &said, &sums)?;
            Ok(vec![sums])
        });
        assert!(text.contains("fused(index_select, mul) "), "{text}");
    }
}

/// Rows and columns, in one piece and in several; ends within a vector; single elements.
const REDUCED: [(&[usize], &[isize]); 9] = [
    (&[37, 53], &[0, 1]),
    (&[37, 53], &[1]),
    (&[37, 53], &[0]),
    (&[9, 300, 33], &[1]),
    (&[6, 64, 128], &[2]),
    (&[6, 64, 128], &[0, 1]),
    (&[3, 9001], &[1]),
    (&[70_001], &[0]),
    (&[3000, 8], &[0]),
];

/// The reduction of a number of them over some axes.
fn reduced(x: &Tensor, kind: usize, axes: &[isize]) -> Result<Tensor> {
    match kind {
        0 => x.sum(axes),
        1 => x.mean(axes),
        2 => x.max(axes),
        _ => x.mul_scalar(0.5)?.add_scalar(1.0)?.sum(axes),
    }
}

#[test]
fn a_reduction_closes_the_chain_that_computes_its_operand() {
    for device in devices() {
        let fuses = fusing().any(|fusing| fusing == device);
        for (n, (shape, axes)) in REDUCED.into_iter().enumerate() {
            for (dtype, kind) in [(DType::F32, 0), (DType::BF16, 1), (DType::F16, 2), (DType::F64, 3)] {
                let mut row = vec![1; shape.len()];
                row[shape.len() - 1] = shape[shape.len() - 1];
                let column: Vec<usize> =
                    (0..shape.len()).map(|a| if a + 1 == shape.len() { 1 } else { shape[a] }).collect();
                let state = || {
                    vec![
                        filled(shape, dtype, 0, &device),
                        filled(&row, dtype, 1, &device),
                        filled(&column, dtype, 2, &device),
                        filled(shape, DType::F32, 3, &device),
                    ]
                };
                let fused = compare(
                    &(shape, axes, dtype, kind),
                    &device,
                    state,
                    |s, random| {
                        let y = s[0].sub(&s[1])?.mul(&s[2])?;
                        // An operand of another dtype allows fewer elements at once than the result.
                        let y = if n % 2 == 0 { y.add(&s[3].to_dtype(dtype)?)? } else { y };
                        let y = if n % 3 == 0 { y.dropout(0.3, random)? } else { y };
                        let z = reduced(&y.tanh()?, kind, axes)?;
                        // What others read is stored on the way.
                        Ok(if n % 4 < 2 { vec![z, y] } else { vec![z] })
                    },
                    |program| {
                        program.lines().any(|l| {
                            l.contains("fused(")
                                && l.contains("tanh")
                                && ["sum)", "mean)", "max)"].iter().any(|end| l.contains(end))
                        })
                    },
                );
                assert_eq!(fused, 2 * usize::from(fuses), "{device}, {shape:?}, {axes:?}, {dtype}, {kind}");
            }
        }
    }
}

#[test]
fn a_loss_that_a_user_writes_is_one_launch_forward() {
    for device in fusing() {
        let [forecast, target] = [0, 1].map(|salt| filled(&[40, 96], DType::F32, salt, &device));
        let weight = filled(&[96], DType::F32, 2, &device);
        let (count, temporaries, table) =
            launches(&device, || Ok(vec![forecast.sub(&target)?.abs()?.mul(&weight)?.mean(())?]));
        // The loss, and on a GPU room for the states of pieces.
        assert!(count == 1 && temporaries <= 2, "{table}");
        // Picked slices and an integer result.
        let index = places(50, 40, 3, DType::I64, &device);
        let (count, _, table) =
            launches(&device, || Ok(vec![forecast.index_select(0, &index)?.mul(&weight)?.argmax(1)?]));
        assert_eq!(count, 1, "{table}");
        // Two reductions of one chain: the first closes it.
        let (count, _, table) = launches(&device, || {
            let square = forecast.sub(&target)?.square()?;
            Ok(vec![square.sum(())?, square.max(1)?])
        });
        assert_eq!(count, 2, "{table}");
    }
}

#[test]
fn a_chain_that_reads_across_rows_stays_apart_from_a_reduction() {
    for device in fusing() {
        let [x, y] = [0, 1].map(|salt| filled(&[40, 40], DType::F32, salt, &device));
        let across = || x.mul(&y.transpose(0, 1)?)?.tanh();
        let (count, _, table) = launches(&device, || Ok(vec![across()?.sum(1)?]));
        assert!(count == 2 && table.contains("fused(mul, tanh)"), "{table}");
        // Windows are summed from a copy.
        let windows = || x.unfold(0, 2, 2)?.unfold(1, 2, 2)?.sum([2, 3]);
        let (count, _, table) = launches(&device, || Ok(vec![windows()?]));
        assert_eq!(count, 2, "{table}");
    }
}

/// A kernel that multiplied and added in one instruction would round once where the parts round twice.
#[test]
fn a_product_is_rounded_before_it_is_summed() {
    for device in devices() {
        for (shape, axes) in REDUCED {
            for dtype in [DType::F32, DType::F64, DType::BF16] {
                let state = || [0, 1].map(|salt| filled(shape, dtype, salt, &device)).to_vec();
                let run = |s: &[Tensor]| -> Result<Vec<Tensor>> {
                    Ok(vec![
                        s[0].mul(&s[1])?.sum(axes)?,
                        s[0].square()?.mean(axes)?,
                        s[1].mul_scalar(0.3)?.sum(axes)?,
                    ])
                };
                let is_fused = |program: &str| program.contains("fused(mul, sum)");
                let fused = compare(&(shape, axes, dtype), &device, state, |s, _| run(s), is_fused);
                assert_eq!(fused, 2 * usize::from(fusing().any(|fusing| fusing == device)), "{device}");
            }
        }
    }
}
