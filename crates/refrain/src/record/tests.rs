use std::sync::mpsc;
use std::thread;

use proptest::prelude::*;

use super::dead;
use super::edges::{Touch, edges};
use super::false_dependencies::{ENOUGH, FalseDependencies};
use super::plan::{
    ALIGNMENT, GROWTH, Life, MemoryPlan, harm, in_time, place, plan, plan_for_overlap, plan_of,
};
use super::program::Program;
use super::recorded::Recorded;
use super::recorder::record;
use super::verify;
use crate::device::Device;
use crate::device::program::{Access, Ranges, StorageRef};
use crate::tensor::{DType, Layout, Tensor};

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

/// For each launch, whether each other one comes before it: directly or through others.
fn before(edges: &[Vec<usize>]) -> Vec<Vec<bool>> {
    let mut before: Vec<Vec<bool>> = Vec::new();
    for waits in edges {
        let mut reached = vec![false; edges.len()];
        for &j in waits {
            reached[j] = true;
            reached.iter_mut().zip(&before[j]).for_each(|(r, b)| *r |= b);
        }
        before.push(reached);
    }
    before
}

/// For each launch, all earlier ones that share a byte with it that one of them writes.
fn conflicts(touches: &[Vec<Touch<'_>>]) -> Vec<Vec<usize>> {
    let conflict = |i: usize, j: usize| touches[i].iter().any(|a| touches[j].iter().any(|b| a.conflicts(b)));
    (0..touches.len()).map(|i| (0..i).filter(|&j| conflict(i, j)).collect()).collect()
}

/// Windows of squares of 8 by 8: whole ones, rows, columns, blocks. Each with whether it is written.
fn any_windows() -> impl Strategy<Value = Vec<Vec<(Access, bool)>>> {
    let bounds = (0usize..8, 1usize..4, prop::bool::weighted(0.5));
    let touch = (0usize..2, bounds.clone(), bounds, prop::bool::weighted(0.6));
    let touch = touch.prop_map(|(place, rows, columns, writes)| {
        let mut layout = Layout::contiguous([8, 8].into());
        for (axis, (start, len, whole)) in [rows, columns].into_iter().enumerate() {
            if !whole {
                layout = layout.narrow(axis, start, len.min(8 - start));
            }
        }
        (Access { place: StorageRef::External(place), layout: layout.into(), dtype: DType::F32 }, writes)
    });
    prop::collection::vec(prop::collection::vec(touch, 0..3), 1..60)
}

fn fits(plan: &MemoryPlan, lives: &[Life]) -> Result<(), TestCaseError> {
    prop_assert!(plan.bytes >= plan.bound);
    for (i, (a, &at)) in lives.iter().zip(&plan.offsets).enumerate() {
        prop_assert!(at % ALIGNMENT == 0 && at + a.bytes <= plan.bytes);
        for (b, &other) in lives[..i].iter().zip(&plan.offsets) {
            let together = a.first <= b.last && b.first <= a.last;
            prop_assert!(!together || at + a.bytes <= other || other + b.bytes <= at);
        }
    }
    Ok(())
}

/// What each launch waits for, by how far behind it that is.
fn waits(back: &[Vec<usize>]) -> Vec<Vec<usize>> {
    let of = |(at, back): (usize, &Vec<usize>)| back.iter().filter_map(|b| at.checked_sub(*b)).collect();
    back.iter().enumerate().map(of).collect()
}

fn any_lives() -> impl Strategy<Value = Vec<Life>> {
    let bytes = prop_oneof![1 => Just(0usize), 9 => 0usize..5000];
    let life = (0usize..60, 0usize..20, bytes);
    let life = life.prop_map(|(first, length, bytes)| Life { first, last: first + length, bytes });
    prop::collection::vec(life, 0..60)
}

proptest! {
    /// Two launches with a common byte that one of them writes are ordered, and every edge is needed.
    #[test]
    fn what_conflicts_is_ordered_and_nothing_waits_twice(launches in any_launches()) {
        let touches = touches(&launches);
        let (edges, conflicts) = (edges(&touches), conflicts(&touches));
        let reached = before(&edges);
        prop_assert_eq!(&reached, &before(&conflicts));
        for i in 0..touches.len() {
            for &j in &edges[i] {
                prop_assert!(conflicts[i].contains(&j));
                let longer = edges[i].iter().any(|&k| k != j && reached[k][j]);
                prop_assert!(!longer, "{i} waits for {j} by way of others");
            }
        }
    }

    /// The same for windows of tensors, which interleave.
    #[test]
    fn windows_that_conflict_are_ordered(launches in any_windows()) {
        let touch = |(access, writes): &(Access, bool)| Touch {
            memory: if access.place == StorageRef::External(0) { 0 } else { 1 },
            range: access.byte_range(),
            writes: *writes,
            access: None,
        };
        let touches: Vec<Vec<Touch<'_>>> = launches
            .iter()
            .map(|l| l.iter().map(|t| Touch { access: Some(&t.0), ..touch(t) }).collect())
            .collect();
        prop_assert_eq!(before(&edges(&touches)), before(&conflicts(&touches)));
    }

    /// With more parallel launches than a launch knows, some edges are redundant, but none is missing.
    #[test]
    fn no_edge_is_lost_among_many_parallel_launches(
        reads in prop::collection::vec(prop::collection::vec(0usize..150, 0..4), 150..300),
    ) {
        // Launch i writes byte i % 150 and reads others.
        let touch = |at: usize, writes| Touch { memory: 0, range: at..at + 1, writes, access: None };
        let touches: Vec<Vec<Touch<'_>>> = reads
            .iter()
            .enumerate()
            .map(|(i, r)| {
                // Most launches read nothing.
                let reads = r.iter().filter(|_| i % 5 == 0).map(|&b| touch(b, false));
                reads.chain([touch(i % 150, true)]).collect()
            })
            .collect();
        prop_assert_eq!(before(&edges(&touches)), before(&conflicts(&touches)));
    }

    #[test]
    fn ranges_find_what_meets_them(
        all in prop::collection::vec((0u8..4, 0usize..2, 0usize..100, 1usize..60), 1..60),
    ) {
        let mut ranges = Ranges::default();
        let mut naive: Vec<(usize, usize, std::ops::Range<usize>)> = Vec::new();
        for (i, (what, memory, start, len)) in all.into_iter().enumerate() {
            let range = start..start + len;
            let met = |m: usize, r: &std::ops::Range<usize>| {
                m == memory && r.start < range.end && range.start < r.end
            };
            let mut found: Vec<usize> = ranges.meeting(memory, range.clone()).copied().collect();
            found.sort_unstable();
            let expected: Vec<usize> = naive.iter().filter(|(_, m, r)| met(*m, r)).map(|(i, ..)| *i).collect();
            prop_assert_eq!(found, expected);
            if what == 0 {
                ranges.clear(memory, range.clone());
                naive.retain(|(_, m, r)| *m != memory || r.start < range.start || range.end < r.end);
            } else {
                ranges.insert(memory, range.clone(), i, |_| false);
                naive.push((i, memory, range));
            }
        }
    }

    #[test]
    fn temporaries_alive_at_the_same_time_share_no_byte(
        lives in any_lives(),
        few in 0usize..70,
        back in prop::collection::vec(prop::collection::vec(1usize..6, 0..3), 80),
    ) {
        let tight = plan_of(&lives, few).unwrap();
        fits(&tight, &lives)?;
        let touching: Vec<Vec<usize>> = lives.iter().map(|life| vec![life.first, life.last]).collect();
        let avoided = FalseDependencies::new(&lives, &touching, &waits(&back));
        let overlapping = plan_for_overlap(&lives, &avoided, &GROWTH).unwrap();
        fits(&overlapping, &lives)?;
        let tight = plan(&lives).unwrap();
        prop_assert!(overlapping.bytes <= tight.bytes + tight.bytes / 8 && overlapping.bound == tight.bound);
        prop_assert!(harm(&lives, &overlapping.offsets, &avoided) <= harm(&lives, &tight.offsets, &avoided));
    }

    /// The slack of every pair of temporaries is that of its definition.
    #[test]
    fn false_dependencies_are_waits_for_what_is_not_needed(
        back in prop::collection::vec(prop::collection::vec(1usize..9, 0..3), 1..40),
        touching in prop::collection::vec(prop::collection::btree_set(0usize..1000, 1..4), 1..12),
    ) {
        let waits = waits(&back);
        let n = waits.len();
        let touching: Vec<Vec<usize>> = touching
            .iter()
            .map(|set| set.iter().map(|at| at % n).collect::<std::collections::BTreeSet<_>>().into_iter().collect())
            .collect();
        let lives: Vec<Life> =
            touching.iter().map(|at| Life { first: at[0], last: at[at.len() - 1], bytes: 1 }).collect();
        let found = FalseDependencies::new(&lives, &touching, &waits);
        let before = before(&waits);
        let mut begins = vec![0usize; n];
        for i in 0..n {
            begins[i] = (0..i).filter(|&j| before[i][j]).map(|j| begins[j] + 1).max().unwrap_or(0);
        }
        let mut behind = vec![0usize; n];
        for i in (0..n).rev() {
            behind[i] = (i + 1..n).filter(|&j| before[j][i]).map(|j| behind[j] + 1).max().unwrap_or(0);
        }
        let longest = begins.iter().max().unwrap();
        for (a, first) in lives.iter().enumerate() {
            for (b, second) in lives.iter().enumerate().filter(|(_, second)| first.last < second.first) {
                let not_needed = touching[a].iter().filter(|&&at| !before[second.first][at]);
                let end = not_needed.map(|&at| begins[at] + 1).max();
                let slack = end.map(|end| (longest - behind[second.first]).saturating_sub(end));
                let expected = slack.filter(|&slack| slack < ENOUGH);
                let pair = found.of(a).find(|(other, _)| *other == b).map(|(_, slack)| slack);
                prop_assert_eq!(pair, expected, "temporaries {} and {}", a, b);
                prop_assert_eq!(found.of(b).find(|(other, _)| *other == a).map(|(_, slack)| slack), expected);
            }
        }
    }

    /// Placing in time finds the same offsets as comparing all temporaries with one another in the same order.
    #[test]
    fn placing_in_time_is_placing_in_that_order(lives in any_lives(), backwards in any::<bool>()) {
        let lives: Vec<Life> = lives.into_iter().filter(|l| l.bytes > 0).collect();
        let mut order: Vec<usize> = (0..lives.len()).collect();
        let begins = |l: &Life| if backwards { usize::MAX - l.last } else { l.first };
        order.sort_by_key(|&i| (begins(&lives[i]), usize::MAX - lives[i].room()));
        let none = FalseDependencies::none(lives.len());
        prop_assert_eq!(in_time(&lives, backwards), place(&lives, &order, true, &none, usize::MAX));
    }

    #[test]
    fn places_that_meet_are_found(lives in any_lives(), offsets in prop::collection::vec(0usize..9000, 60)) {
        let places: Vec<(usize, Life)> = offsets.into_iter().map(|o| o * 7).zip(lives).collect();
        let meet = |(at, a): &(usize, Life), (other, b): &(usize, Life)| {
            let together = a.first <= b.last && b.first <= a.last && a.bytes > 0 && b.bytes > 0;
            together && *at < other + b.bytes && *other < at + a.bytes
        };
        let any = (0..places.len()).any(|i| places[..i].iter().any(|p| meet(p, &places[i])));
        prop_assert_eq!(verify::meeting(&places).is_some(), any);
    }

    /// If an order of launches respects the edges of memory reuse, every reader gets the bytes of the same writer as
    /// in list order.
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
        let plan = plan(&lives).unwrap();
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

#[test]
fn launches_side_by_side_share_no_bytes_where_there_is_room() {
    let life = |first, last, bytes| Life { first, last, bytes };
    // A branch of launches 0 and 1, one of launches 2 and 3, and a launch behind both that needs much more.
    let lives = [life(0, 1, 512), life(2, 3, 512), life(4, 4, 4096)];
    let waits = [vec![], vec![0], vec![], vec![2], vec![1, 3]];
    let touching = [vec![0, 1], vec![2, 3], vec![4]];
    let first = |n: usize| {
        let avoided = FalseDependencies::new(&lives[..n], &touching[..n], &waits);
        plan_for_overlap(&lives[..n], &avoided, &GROWTH).unwrap()
    };
    assert_eq!(plan(&lives).unwrap().offsets[..2], [0, 0]);
    let apart = first(3);
    assert_ne!(apart.offsets[0], apart.offsets[1]);
    assert_eq!((apart.bytes, apart.bound), (4096, 4096));
    // Without room, the block stays as small as it was.
    assert_eq!(first(2), plan(&lives[..2]).unwrap());
}

/// Input gradients are a chain; beside each is a weight gradient that reads the same temporary, for which only the optimiser waits.
#[test]
fn an_input_gradient_does_not_wait_for_the_last_weight_gradients() {
    let life = |first, last, bytes| Life { first, last, bytes };
    // Launches 0, 2, 4, ... are the chain. Before it, something large was alive.
    let steps = 12;
    let (mut lives, mut touching) = (vec![life(0, 1, 6 << 10)], vec![vec![0, 1]]);
    let mut waits = vec![vec![], vec![0]];
    for at in (2..2 * steps).step_by(2) {
        lives.push(life(at, at + 3, 1 << 10));
        touching.push(vec![at, at + 2, at + 3]);
        waits.extend([vec![at - 2 + usize::from(at == 2)], vec![at - 2]]);
    }
    let end = 2 * steps;
    waits.extend([vec![end - 2], vec![end - 2], (0..end + 2).collect()]);
    let avoided = FalseDependencies::new(&lives, &touching, &waits);
    // The weight gradients that an input gradient waits for, by how many launches ago they were.
    let waited_for = |plan: &MemoryPlan| -> Vec<usize> {
        let touch = |t: usize, at: usize| Touch {
            memory: 0,
            range: plan.offsets[t]..plan.offsets[t] + lives[t].bytes,
            writes: touching[t][0] == at,
            access: None,
        };
        let of = |at: usize| (0..lives.len()).filter(|&t| touching[t].contains(&at)).collect::<Vec<_>>();
        let touches: Vec<Vec<Touch<'_>>> =
            (0..end + 2).map(|at| of(at).into_iter().map(|t| touch(t, at)).collect()).collect();
        let edges = edges(&touches);
        let chain = (4..end).step_by(2);
        chain
            .flat_map(|at| {
                edges[at].iter().filter(|&&w| w % 2 == 1).map(move |&w| at - w).collect::<Vec<_>>()
            })
            .collect()
    };
    let tight = plan(&lives).unwrap();
    assert!(waited_for(&tight).contains(&1), "{tight:?}");
    let overlapping = plan_for_overlap(&lives, &avoided, &GROWTH).unwrap();
    assert!(waited_for(&overlapping).iter().all(|&ago| ago > 4), "{overlapping:?}");
    // There is no room for all of them.
    assert!(lives[1..].iter().map(|life| life.bytes).sum::<usize>() > overlapping.bytes);
}

/// Each of many branches has slack, but if each waited for the bytes of the one before, they would be the longest chain.
#[test]
fn branches_do_not_become_a_chain_by_their_bytes() {
    let (steps, branches) = (20, 30);
    let recorded = recorded(|device| {
        let x = Tensor::ones([1 << 16], DType::F32, device)?;
        let small = Tensor::ones([1 << 10], DType::F32, device)?;
        let mut y = x.exp()?;
        for _ in 1..steps {
            y = y.exp()?;
        }
        let branches: Vec<Tensor> =
            (0..branches).map(|_| small.exp()?.sum(())).collect::<crate::Result<_>>()?;
        let first = y.narrow(0, 0, 1)?.add(&branches[0])?;
        Ok(vec![branches[1..].iter().try_fold(first, |sum, branch| sum.add(branch))?])
    });
    let program = Program::new(recorded.into(), None, true).unwrap();
    // Behind the first launch, which fills, and the chain, what the branches end in is added one by one.
    assert_eq!(program.longest_chain(), 1 + steps + branches, "{program}");
}

fn recorded(f: impl FnOnce(&Device) -> crate::Result<Vec<Tensor>>) -> Recorded {
    let device = Device::cpu();
    record(&device, &[], |_| Ok(f(&device)?)).unwrap()
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
    let program = Program::new(recorded.into(), None, false).unwrap();
    assert_eq!((program.launch_count(), program.dead_launches()), (6, 3));
    // The launch that changes the state waits for nothing.
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
    verify::recorded(&fine, &[0, 1], &[]).unwrap();
    let error = verify::recorded(&fine, &[1], &[]).unwrap_err().to_string();
    assert!(error.contains("reads operand 0, which nothing has written"), "{error}");
    let error = verify::recorded(&fine, &[0], &[]).unwrap_err().to_string();
    assert!(error.contains("nothing has written output 0"), "{error}");
    let mut short = make();
    short.temporaries[0].bytes = 8;
    let error = verify::recorded(&short, &[0, 1], &[]).unwrap_err().to_string();
    assert!(error.contains("launch 0 reaches beyond its storage"), "{error}");

    let mut program = Program::new(make().into(), None, false).unwrap();
    verify::planned(&program).unwrap();
    program.plan.offsets = vec![0, 0];
    let error = verify::planned(&program).unwrap_err().to_string();
    assert!(error.contains("alive at the same time and share memory"), "{error}");
    program.plan.offsets = vec![0, 1 << 20];
    assert!(verify::planned(&program).is_err());
}

#[test]
fn launches_that_fusing_loses_doubles_or_moves_too_far_are_found() {
    let device = Device::cpu();
    let x = Tensor::ones([4], DType::F32, &device).unwrap();
    let recorded = record(&device, &[], |_| Ok(vec![x.exp()?.square()?.neg()?])).unwrap();
    let count = recorded.launches.len();
    let check = |after: &[usize], parts: &[Vec<usize>]| verify::fused(&recorded, &[0, 1, 2], after, parts);
    check(&[0, count], &[vec![1, 2]]).unwrap();
    let error = |after: &[usize], parts: &[Vec<usize>]| check(after, parts).unwrap_err().to_string();
    assert!(error(&[0, count], &[vec![2, 1]]).contains("launch 2 came before one that it waits for"));
    assert!(error(&[count, 0], &[vec![1, 2]]).contains("launch 1 came before one that it waits for"));
    assert!(error(&[0, count], &[vec![2]]).contains("launch 1 was lost"));
    assert!(error(&[0, 1, count], &[vec![1, 2]]).contains("launch 1 was doubled"));
}

#[test]
fn a_thread_that_had_made_a_tensor_before_goes_on_during_a_recording() {
    let device = Device::cpu();
    let ((made, is_made), (begin, has_begun)) = (mpsc::channel(), mpsc::channel());
    thread::scope(|scope| {
        let other = scope.spawn(move || {
            // Its first launch comes later.
            let t = Tensor::empty("test", &[1].into(), DType::F32, &Device::cpu()).unwrap();
            made.send(()).unwrap();
            has_begun.recv().unwrap();
            t.fill(1.0)
        });
        is_made.recv().unwrap();
        let recorded = record(&device, &[], |_| {
            begin.send(())?;
            other.join().unwrap()?;
            Ok(vec![])
        });
        assert!(recorded.unwrap().launches.is_empty());
    });
}
