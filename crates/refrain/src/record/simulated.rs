//! Random programs on the simulated GPU: it accepts every correct program, and it notices every edge that is removed.

use proptest::prelude::*;

use super::program::Program;
use super::recorded::Recorded;
use super::recorder::record;
use super::replay::{Ahead, Ready};
use crate::device::cuda::MmaKind;
use crate::device::{Communicator, Device, Profile, ReduceOp, Simulator};
use crate::error::{Error, Result};
use crate::tensor::{DType, Tensor};

const N: usize = 16;
/// The number of tensors from outside the step.
const STATE: usize = 3;

/// The kind of a launch, and numbers that choose its operands.
type Instruction = (u8, usize, usize, usize);

fn any_program() -> impl Strategy<Value = Vec<Instruction>> {
    prop::collection::vec((0u8..8, 0usize..1000, 0usize..1000, 0usize..1000), 1..48)
}

fn state(device: &Device) -> Result<Vec<Tensor>> {
    let values = |s: usize| (0..N).map(|i| ((i * 7 + s * 5) % 11) as f32 / 11.0 - 0.4).collect::<Vec<_>>();
    (0..STATE).map(|s| Tensor::from_slice(&values(s), [N], device)).collect()
}

/// Runs the instructions. The results are the last three tensors that they made.
fn run(program: &[Instruction], state: &[Tensor]) -> Result<Vec<Tensor>> {
    let mut made: Vec<Tensor> = state.iter().map(|s| s.mul_scalar(1.25)).collect::<Result<_>>()?;
    for &(what, a, b, c) in program {
        let (x, y, s) = (&made[a % made.len()], &made[b % made.len()], &state[c % STATE]);
        let square = |t: &Tensor| t.reshape([4, 4]);
        match what {
            0 => made.push(x.mul(y)?),
            1 => made.push(x.tanh()?),
            2 => made.push(x.sub(s)?.tanh()?),
            // A part of a tensor from outside.
            3 => s.narrow(0, c % 3 * 4, 8)?.copy_from(&x.narrow(0, b % 2 * 8, 8)?)?,
            // Columns, which interleave.
            4 => square(s)?.narrow(1, b % 4, 1)?.copy_from(&square(x)?.narrow(1, c % 4, 1)?)?,
            // Uses a workspace besides its operands.
            5 => made.push(square(x)?.matmul(&square(y)?)?.tanh()?.reshape([N])?),
            6 => s.narrow(0, c % 3 * 4, 8)?.add_assign(&x.narrow(0, b % 2 * 8, 8)?)?,
            _ => made.push(square(x)?.softmax((c % 2) as isize)?.reshape([N])?),
        }
    }
    Ok(made.split_off(made.len() - STATE))
}

fn recorded(program: &[Instruction], state: &[Tensor], device: &Device) -> Recorded {
    record(device, &[], |_| Ok(run(program, state)?)).unwrap()
}

fn ready(program: Program, device: &Device) -> Result<Ready> {
    Ahead::new(program, device)?.finish(device)
}

fn bits(tensors: &[Tensor]) -> Vec<Vec<u32>> {
    let bits = |t: &Tensor| t.to_vec::<f32>().unwrap().into_iter().map(f32::to_bits).collect();
    tensors.iter().map(bits).collect()
}

/// How many seeds each test runs: `REFRAIN_SIM_SEEDS`, or a few.
pub(crate) fn seeds() -> u64 {
    std::env::var("REFRAIN_SIM_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(4)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn no_right_program_is_accused_and_every_order_computes_the_same(program in any_program()) {
        let expected = {
            let state = state(&Device::cpu()).unwrap();
            run(&program, &state).unwrap();
            let made = run(&program, &state).unwrap();
            (bits(&made), bits(&state))
        };
        for (seed, fuses) in (0..seeds()).flat_map(|seed| [(seed, false), (seed, true)]) {
            let profile = [Profile::Discrete, Profile::Unified][seed as usize % 2];
            let device = Simulator::new(profile).seed(seed).device();
            let state = state(&device).unwrap();
            let recorded = recorded(&program, &state, &device);
            let ready = ready(Program::new(recorded.into(), fuses.then_some(MmaKind::Warp), true).unwrap(), &device).unwrap();
            (0..2).for_each(|_| ready.replay(&device).unwrap());
            let found = (bits(&ready.outputs()), bits(&state));
            prop_assert_eq!(found, expected.clone(), "seed {}, fused: {}", seed, fuses);
        }
    }

    #[test]
    fn an_edge_that_is_taken_away_is_named(program in any_program()) {
        let device = Simulator::new(Profile::Discrete).device();
        let state = state(&device).unwrap();
        let whole = Program::new(recorded(&program, &state, &device).into(), None, true).unwrap();
        let edges = whole.waits.iter().enumerate().flat_map(|(to, from)| from.iter().map(move |&from| (from, to)));
        for (from, to) in edges {
            let mut lacking = Program::new(recorded(&program, &state, &device).into(), None, true).unwrap();
            lacking.waits[to].retain(|&wait| wait != from);
            match ready(lacking, &device).map(drop) {
                Err(Error::Hazard { message, .. }) => prop_assert!(
                    message.ends_with(&format!("the graph lacks the edge {from} -> {to}")), "{from} -> {to}: {message}"
                ),
                other => prop_assert!(false, "{from} -> {to} went unnoticed: {other:?}"),
            }
        }
        // Dropping frees the memory.
        drop(whole);
        device.synchronize().unwrap();
    }
}

#[test]
fn an_accusation_names_both_launches_and_what_they_do() {
    let device = Device::sim(Profile::Unified, 0);
    let x = Tensor::ones([4], DType::F32, &device).unwrap();
    let recorded = record(&device, &[], |_| Ok(vec![x.exp()?.square()?])).unwrap();
    let mut program = Program::new(recorded.into(), None, true).unwrap();
    program.waits[1].clear();
    let error = ready(program, &device).map(drop).unwrap_err().to_string();
    assert!(error.starts_with("square on sim:unified: launch 1 (square) reads the byte at "), "{error}");
    assert!(error.contains("which launch 0 (exp) writes"), "{error}");
}

#[test]
fn a_collective_in_flight_may_not_be_touched_and_collectives_do_not_run_side_by_side() {
    for seed in 0..seeds() {
        let profile = [Profile::Discrete, Profile::Unified][seed as usize % 2];
        let device = Simulator::new(profile).seed(seed).device();
        let rank = Communicator::in_process(&[device.clone()]).unwrap().remove(0);
        let [x, y] = [1.0, 2.0].map(|v| Tensor::full([4], v, DType::F32, &device).unwrap());
        let without = |edge: [usize; 2]| {
            let recorded = record(&device, &[], |_| {
                rank.all_reduce_assign(&x, ReduceOp::Sum)?;
                x.mul_scalar_assign(2.0)?;
                rank.all_reduce_assign(&y, ReduceOp::Sum)?;
                Ok(vec![])
            });
            let mut program = Program::new(recorded.unwrap().into(), None, true).unwrap();
            assert!(program.waits[edge[1]].contains(&edge[0]), "{program}");
            program.waits[edge[1]].retain(|&wait| wait != edge[0]);
            ready(program, &device).map(drop).unwrap_err().to_string()
        };
        let error = without([0, 1]);
        assert!(error.contains("launch 1 (mul) reads the byte at"), "{error}");
        assert!(error.contains("which launch 0 (all_reduce) writes"), "{error}");
        assert!(error.ends_with("the graph lacks the edge 0 -> 1"), "{error}");
        let error = without([0, 2]);
        assert!(error.contains("each would wait for the other"), "{error}");
        assert!(error.ends_with("the graph lacks the edge 0 -> 2"), "{error}");
    }
}
