use proptest::prelude::*;

use super::dead;
use super::edges::{Touch, before, edges};
use super::plan::{ALIGNMENT, Life, plan};
use super::program::Program;
use super::recorded::Recorded;
use super::recorder::record;
use super::verify;
use crate::device::Device;
use crate::tensor::{DType, Tensor};

/// Launches that read and write ranges of three memories.
fn any_launches() -> impl Strategy<Value = Vec<Vec<(usize, usize, usize, bool)>>> {
    let touch = (0usize..3, 0usize..40, 0usize..12, prop::bool::weighted(0.4));
    prop::collection::vec(prop::collection::vec(touch, 0..5), 1..40)
}

fn touches(launches: &[Vec<(usize, usize, usize, bool)>]) -> Vec<Vec<Touch<'static>>> {
    let touch = |&(memory, start, len, writes): &(usize, usize, usize, bool)| Touch {
        memory,
        range: start..start + len,
        writes,
        access: None,
    };
    launches.iter().map(|l| l.iter().map(touch).collect()).collect()
}

fn any_lives() -> impl Strategy<Value = Vec<Life>> {
    let life = (0usize..60, 0usize..20, 0usize..5000);
    let life = life.prop_map(|(first, length, bytes)| Life { first, last: first + length, bytes });
    prop::collection::vec(life, 0..60)
}

proptest! {
    /// Two launches that touch a common byte, one of them writing it, are ordered; and every edge is needed.
    #[test]
    fn what_conflicts_is_ordered_and_nothing_waits_twice(launches in any_launches()) {
        let touches = touches(&launches);
        let edges = edges(&touches);
        let reached = before(&edges);
        for i in 0..touches.len() {
            for j in 0..i {
                let conflict = touches[i].iter().any(|a| touches[j].iter().any(|b| a.conflicts(b)));
                prop_assert!(!conflict || reached[i].has(j), "{j} and {i} conflict");
            }
            for &j in &edges[i] {
                prop_assert!(touches[i].iter().any(|a| touches[j].iter().any(|b| a.conflicts(b))));
                let longer = edges[i].iter().any(|&k| k != j && reached[k].has(j));
                prop_assert!(!longer, "{i} waits for {j} by way of others");
            }
        }
    }

    #[test]
    fn temporaries_alive_at_the_same_time_share_no_byte(lives in any_lives()) {
        let plan = plan(&lives);
        prop_assert!(plan.bytes >= plan.bound);
        for (i, (a, &at)) in lives.iter().zip(&plan.offsets).enumerate() {
            prop_assert!(at % ALIGNMENT == 0 && at + a.bytes <= plan.bytes);
            for (b, &other) in lives[..i].iter().zip(&plan.offsets) {
                let together = a.first <= b.last && b.first <= a.last;
                prop_assert!(!together || at + a.bytes <= other || other + b.bytes <= at);
            }
        }
    }

    /// With the edges that reuse of memory makes, any order of launches that respects them gives every reader the
    /// bytes of the writer that it reads from in list order.
    #[test]
    fn any_order_that_respects_the_edges_computes_the_same(
        reads in prop::collection::vec(prop::collection::vec(0usize..30, 0..3), 2..30),
        sizes in prop::collection::vec(1usize..2000, 30),
        picks in prop::collection::vec(0usize..1000, 30),
    ) {
        // Launch i writes temporary i and reads earlier ones.
        let n = reads.len();
        let reads: Vec<Vec<usize>> =
            reads.iter().enumerate().map(|(i, r)| r.iter().filter(|_| i > 0).map(|&x| x % i.max(1)).collect()).collect();
        let last = |t: usize| (t..n).rev().find(|&i| i == t || reads[i].contains(&t)).unwrap_or(t);
        let lives: Vec<Life> = (0..n).map(|t| Life { first: t, last: last(t), bytes: sizes[t] }).collect();
        let plan = plan(&lives);
        let touch = |t: usize, writes| Touch {
            memory: 0,
            range: plan.offsets[t]..plan.offsets[t] + sizes[t],
            writes,
            access: None,
        };
        let touches: Vec<Vec<Touch<'_>>> = (0..n)
            .map(|i| reads[i].iter().map(|&t| touch(t, false)).chain([touch(i, true)]).collect())
            .collect();
        let edges = edges(&touches);
        let mut memory = vec![usize::MAX; plan.bytes];
        let mut done = vec![false; n];
        for step in 0..n {
            let ready: Vec<usize> =
                (0..n).filter(|&i| !done[i] && edges[i].iter().all(|&j| done[j])).collect();
            let i = ready[picks[step % picks.len()] % ready.len()];
            for &t in &reads[i] {
                let bytes = &memory[plan.offsets[t]..plan.offsets[t] + sizes[t]];
                prop_assert!(bytes.iter().all(|&b| b == t), "launch {} reads another's bytes", i);
            }
            memory[plan.offsets[i]..plan.offsets[i] + sizes[i]].fill(i);
            done[i] = true;
        }
    }
}

fn recorded(f: impl FnOnce(&Device) -> crate::Result<Vec<Tensor>>) -> Recorded {
    let device = Device::cpu();
    record(&device, || Ok(f(&device)?)).unwrap()
}

#[test]
fn launches_that_nobody_needs_are_dropped() {
    let device = Device::cpu();
    let x = Tensor::ones([4], DType::F32, &device).unwrap();
    let state = x.copy().unwrap();
    let recorded = recorded(|_| {
        let a = x.exp()?; // 0: read by 3
        let b = x.zeros_like()?; // 1: replaced by 2 before anybody reads it
        b.fill(2.0)?; // 2
        let c = a.add(&b)?; // 3
        c.square()?.relu()?; // 4, 5: read by nobody
        state.add_scalar_assign(1.0)?; // 6: outlives the step
        let d = x.zeros_like()?; // 7: added to
        d.narrow(0, 0, 2)?.add_assign(&c.narrow(0, 1, 2)?)?; // 8
        Ok(vec![d])
    });
    assert_eq!(recorded.launches.len(), 9);
    assert_eq!(dead::live(&recorded), [0, 2, 3, 6, 7, 8]);
    let program = Program::new(recorded).unwrap();
    assert_eq!((program.launch_count(), program.dead_launches()), (6, 3));
    // The launch that moves the state waits for nobody.
    assert!(program.waits[3].is_empty(), "{program}");
}

#[test]
fn nothing_runs_and_nothing_is_allocated_while_recording() {
    let device = Device::cpu();
    let x = Tensor::ones([4], DType::F32, &device).unwrap();
    let recorded = recorded(|_| {
        x.fill(7.0)?;
        Ok(vec![x.exp()?])
    });
    assert_eq!(recorded.launches.len(), 2);
    assert_eq!(x.to_vec::<f32>().unwrap(), [1.0; 4]);
}

#[test]
fn a_broken_program_is_found_by_the_verifier() {
    let device = Device::cpu();
    let x = Tensor::ones([4], DType::F32, &device).unwrap();
    let make = || recorded(|_| Ok(vec![x.exp()?.square()?]));
    let fine = make();
    verify::recorded(&fine, &[0, 1]).unwrap();
    let error = verify::recorded(&fine, &[1]).unwrap_err().to_string();
    assert!(error.contains("reads operand 0, which nothing has written"), "{error}");
    let error = verify::recorded(&fine, &[0]).unwrap_err().to_string();
    assert!(error.contains("nothing has written output 0"), "{error}");
    let mut short = make();
    short.temporaries[0].bytes = 8;
    let error = verify::recorded(&short, &[0, 1]).unwrap_err().to_string();
    assert!(error.contains("launch 0 reaches beyond its storage"), "{error}");

    let mut program = Program::new(make()).unwrap();
    verify::planned(&program).unwrap();
    program.plan.offsets = vec![0, 0];
    let error = verify::planned(&program).unwrap_err().to_string();
    assert!(error.contains("alive at the same time and share memory"), "{error}");
    program.plan.offsets = vec![0, 1 << 20];
    assert!(verify::planned(&program).is_err());
}
