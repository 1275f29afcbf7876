use half::{bf16, f16};

use super::*;
use crate::ops::attention::dropout::WeightWords;

fn numbers(len: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(12_345);
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..len).map(|_| next()).collect()
}

/// Outputs and gradients by the definition, in f64, for one sequence and head. All are (tokens, head_dim).
fn reference(sizes: &Attention<'_, f64>, q: &[f64], k: &[f64], v: &[f64], d_o: &[f64]) -> [Vec<f64>; 4] {
    let Attention { queries, keys, head_dim: d, scale, causal, past, .. } = *sizes;
    let (mut o, mut dq) = (vec![0.0; queries * d], vec![0.0; queries * d]);
    let (mut dk, mut dv) = (vec![0.0; keys * d], vec![0.0; keys * d]);
    let dot = |a: &[f64], i: usize, b: &[f64], j: usize| -> f64 {
        (0..d).map(|c| a[i * d + c] * b[j * d + c]).sum()
    };
    for i in 0..queries {
        let seen = if causal { keys.min(i + 1 + past) } else { keys };
        let e: Vec<f64> = (0..seen).map(|j| (scale * dot(q, i, k, j)).exp()).collect();
        let total: f64 = e.iter().sum();
        let p: Vec<f64> = e.iter().map(|e| e / total).collect();
        let dp: Vec<f64> = (0..seen).map(|j| dot(d_o, i, v, j)).collect();
        let mean: f64 = p.iter().zip(&dp).map(|(p, dp)| p * dp).sum();
        for j in 0..seen {
            let ds = p[j] * (dp[j] - mean) * scale;
            for c in 0..d {
                o[i * d + c] += p[j] * v[j * d + c];
                dv[j * d + c] += p[j] * d_o[i * d + c];
                dq[i * d + c] += ds * k[j * d + c];
                dk[j * d + c] += ds * q[i * d + c];
            }
        }
    }
    [o, dq, dk, dv]
}

/// Runs forward and backward and compares each element with the definition.
fn check<T: Real + From<f32> + Into<f64>>(sizes: Attention<'_, T>, joint: bool, epsilon: f64) {
    let Attention { batch, heads, queries, keys, head_dim, .. } = sizes;
    let row = heads * head_dim;
    // In separate memory, or packed as one projection leaves them.
    let layout_of = |tokens: usize, joined: usize| HeadLayout {
        offset: 0,
        batch_stride: joined * tokens * row,
        token_stride: joined * row,
        head_stride: head_dim,
    };
    let layout = |tokens: usize, which: usize| {
        if joint { HeadLayout { offset: which * row, ..layout_of(tokens, 3) } } else { layout_of(tokens, 1) }
    };
    let layouts = [layout(queries, 0), layout(keys, 1), layout(keys, 2)];
    let o_layout = layout_of(queries, 1);
    let fill = |len: usize, seed: u32| -> Vec<T> { numbers(len, seed).into_iter().map(T::from).collect() };
    let len = |layout: &HeadLayout| batch * layout.batch_stride;
    let data: Vec<Vec<T>> = if joint {
        vec![fill(len(&layouts[0]), 1)]
    } else {
        (0..3).map(|i| fill(len(&layouts[i]), i as u32)).collect()
    };
    let qkv = std::array::from_fn(|i| Heads::new(&data[if joint { 0 } else { i }], layouts[i]));
    let mut o = vec![T::NEG_INFINITY; batch * queries * row];
    let mut kept = [0, 1].map(|_| vec![T::NEG_INFINITY; batch * heads * queries]);
    let (scores, score_gradients) = (
        Scores { before: None, after: None },
        ScoreGradients { before: None, d_after: None, d_before: None },
    );
    forward(&sizes, qkv, &mut o, o_layout, kept.each_mut().map(|rows| &mut rows[..]), scores);
    let d_o = fill(batch * queries * row, 9);
    let d_layouts = [queries, keys, keys].map(|tokens| layout_of(tokens, 1));
    let mut gradients = d_layouts.map(|layout| vec![T::NEG_INFINITY; len(&layout)]);
    let [dq, dk, dv] = &mut gradients;
    let to = Gradients::Separate([dq, dk, dv]);
    let kept = kept.each_ref().map(|rows| &rows[..]);
    let d_o_heads = Heads::new(&d_o, o_layout);
    backward(&sizes, qkv, d_o_heads, kept, to, d_layouts, score_gradients);

    let wide = Attention {
        batch,
        heads,
        queries,
        keys,
        head_dim,
        scale: sizes.scale.into(),
        causal: sizes.causal,
        past: sizes.past,
        dropped: None,
    };
    let gather = |data: &[T], layout: HeadLayout, b: usize, h: usize, tokens: usize| -> Vec<f64> {
        let at = |n: usize, c: usize| {
            layout.offset + b * layout.batch_stride + n * layout.token_stride + h * layout.head_stride + c
        };
        (0..tokens * head_dim).map(|i| data[at(i / head_dim, i % head_dim)].into()).collect()
    };
    // Each score has the rounding error of a sum of head_dim products; the exponential makes it a relative error of
    // p. Each result then is a sum over the tokens of terms of size at most head_dim.
    let tokens = queries.max(keys) as f64;
    let bound = 16.0 * epsilon * (head_dim as f64) * (4.0 + tokens.sqrt());
    for b in 0..batch {
        for h in 0..heads {
            let input = |i: usize, n| gather(qkv[i].data, layouts[i], b, h, n);
            let want = reference(
                &wide,
                &input(0, queries),
                &input(1, keys),
                &input(2, keys),
                &gather(&d_o, o_layout, b, h, queries),
            );
            let got = [
                gather(&o, o_layout, b, h, queries),
                gather(&gradients[0], d_layouts[0], b, h, queries),
                gather(&gradients[1], d_layouts[1], b, h, keys),
                gather(&gradients[2], d_layouts[2], b, h, keys),
            ];
            for ((name, got), want) in ["o", "dq", "dk", "dv"].into_iter().zip(got).zip(want) {
                for (i, (got, want)) in got.iter().zip(&want).enumerate() {
                    assert!(
                        (got - want).abs() <= bound,
                        "{name}[{i}] of sequence {b}, head {h}: {got}, not {want} (bound {bound:e}); {sizes:?}"
                    );
                }
            }
        }
    }
}

#[test]
fn attention_matches_the_definition() {
    // (queries, keys): within one register, whole registers, one block and more; as many keys as queries, more,
    // fewer.
    let tokens =
        [(1, 1), (5, 5), (16, 16), (17, 17), (41, 41), (64, 64), (65, 65), (7, 20), (64, 17), (150, 130)];
    for (queries, keys) in tokens {
        for head_dim in [1, 4, 8, 16, 20, 64] {
            let scale = 1.0 / (head_dim as f32).sqrt();
            for (causal, past) in [(false, 0), (true, 0), (true, 3), (true, keys)] {
                let sizes = Attention {
                    batch: 2,
                    heads: 3,
                    queries,
                    keys,
                    head_dim,
                    scale,
                    causal,
                    past,
                    dropped: None,
                };
                check(sizes, false, f64::from(f32::EPSILON));
                let wide = Attention {
                    batch: 1,
                    heads: 2,
                    queries,
                    keys,
                    head_dim,
                    scale: f64::from(scale),
                    causal,
                    past,
                    dropped: None,
                };
                check(wide, false, f64::EPSILON);
                if queries == keys {
                    check(sizes, true, f64::from(f32::EPSILON));
                }
            }
        }
    }
}

#[test]
fn without_queries_the_gradients_of_keys_and_values_are_zero() {
    let sizes = Attention {
        batch: 2,
        heads: 1,
        queries: 0,
        keys: 3,
        head_dim: 2,
        scale: 1.0f32,
        causal: false,
        past: 0,
        dropped: None,
    };
    let layout = HeadLayout { offset: 0, batch_stride: 0, token_stride: 2, head_stride: 2 };
    let keys = HeadLayout { batch_stride: 6, ..layout };
    let none = Heads::new(&[], layout);
    let kv = Heads::new(&[1.0; 12], keys);
    let (mut dk, mut dv) = ([f32::NAN; 12], [f32::NAN; 12]);
    let gradients = Gradients::Separate([&mut [], &mut dk, &mut dv]);
    let scores = ScoreGradients { before: None, d_after: None, d_before: None };
    backward(&sizes, [none, kv, kv], none, [&[], &[]], gradients, [layout, keys, keys], scores);
    assert_eq!((dk, dv), ([0.0; 12], [0.0; 12]));
}

#[test]
fn large_scores_do_not_overflow() {
    let sizes = Attention {
        batch: 1,
        heads: 1,
        queries: 2,
        keys: 3,
        head_dim: 1,
        scale: 1.0f32,
        causal: false,
        past: 0,
        dropped: None,
    };
    let layout = HeadLayout { offset: 0, batch_stride: 3, token_stride: 1, head_stride: 1 };
    let heads = |data| Heads::new(data, layout);
    let (mut o, mut largest, mut inverse) = ([0.0; 2], [0.0; 2], [0.0; 2]);
    let (q, k, v) = ([1000.0, -1000.0], [1.0, 0.5, -1.0], [1.0, 2.0, 3.0]);
    forward(
        &sizes,
        [heads(&q), heads(&k), heads(&v)],
        &mut o,
        HeadLayout { batch_stride: 2, ..layout },
        [&mut largest, &mut inverse],
        Scores { before: None, after: None },
    );
    assert_eq!((o, largest, inverse), ([1.0, 3.0], [1000.0, 1000.0], [1.0, 1.0]));
}

/// How the tokens of the operands lie.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Memory {
    /// As one projection leaves them.
    Packed,
    /// Head by head.
    ByHead,
    /// A token of all sequences after the other.
    ByToken,
}

/// Results of both passes by one kernel: outputs, statistics, scores, gradients of queries, keys and values and of scores. Operands and
/// their gradients are stored as `A`.
fn both_passes<A: Stored, T: Real + From<f32>>(
    kernel: Kernel,
    sizes: &Attention<'_, T>,
    memory: Memory,
    with_scores: bool,
) -> Vec<Vec<T>> {
    let Attention { batch, heads, queries, keys, head_dim, .. } = *sizes;
    let fill = |len: usize, seed: u32| -> Vec<T> { numbers(len, seed).into_iter().map(T::from).collect() };
    // Numbers that every type has.
    let stored = |len: usize, seed: u32| -> Vec<A> {
        numbers(len, seed).into_iter().map(|x| A::from_number((x * 64.0).round() / 64.0)).collect()
    };
    let row = heads * head_dim;
    let layout = |memory: Memory, tokens: usize, part: usize| match memory {
        Memory::Packed => HeadLayout {
            offset: part * row,
            batch_stride: 3 * tokens * row,
            token_stride: 3 * row,
            head_stride: head_dim,
        },
        Memory::ByHead => HeadLayout {
            offset: 0,
            batch_stride: tokens * row,
            token_stride: head_dim,
            head_stride: tokens * head_dim,
        },
        Memory::ByToken => {
            HeadLayout { offset: 0, batch_stride: row, token_stride: batch * row, head_stride: head_dim }
        }
    };
    let of_all = |memory: Memory| [(queries, 0), (keys, 1), (keys, 2)].map(|(n, i)| layout(memory, n, i));
    let layouts = of_all(memory);
    // Sequences of results follow each other.
    let to_layouts = of_all(if memory == Memory::Packed { memory } else { Memory::ByHead });
    let o_layout =
        HeadLayout { offset: 0, batch_stride: queries * row, token_stride: row, head_stride: head_dim };
    let data: Vec<Vec<A>> = (0..3).map(|i| stored(batch * to_layouts[i].batch_stride, i as u32)).collect();
    let heads_of = |i: usize| Heads::new(&data[if memory == Memory::Packed { 0 } else { i }], layouts[i]);
    let qkv = [heads_of(0), heads_of(1), heads_of(2)];
    let all = batch * heads * queries * keys;
    // Scores that are the same for all heads of a sequence.
    let added = fill(batch * queries * keys, 7);
    let before = with_scores.then_some(Added { data: &added, strides: [queries * keys, 0, keys] });
    let len = batch * o_layout.batch_stride;
    let mut o = vec![A::zeroed(); len];
    let mut results = [batch * heads * queries, batch * heads * queries, all].map(|len| vec![T::ZERO; len]);
    let [largest, inverse, after] = &mut results;
    let scores = Scores { before, after: with_scores.then_some(after) };
    forward_by(kernel, sizes, qkv, &mut o, o_layout, [largest, inverse], scores);
    let (d_o, d_after) = (stored(len, 9), fill(all, 10));
    let mut gradients = to_layouts.map(|layout| vec![A::zeroed(); batch * layout.batch_stride]);
    let mut d_before = vec![T::ZERO; all];
    let scores = ScoreGradients {
        before,
        d_after: with_scores.then_some(&d_after),
        d_before: with_scores.then_some(&mut d_before),
    };
    let [dq, dk, dv] = &mut gradients;
    let to = if memory == Memory::Packed { Gradients::Packed(dq) } else { Gradients::Separate([dq, dk, dv]) };
    let kept = [&results[0][..], &results[1][..]];
    let d_o_layout = if memory == Memory::ByToken { layout(memory, queries, 0) } else { o_layout };
    let d_o = Heads::new(&d_o, d_o_layout);
    backward_by(kernel, sizes, [qkv[0], qkv[1], qkv[2], d_o], kept, to, to_layouts, scores);
    let wide = |x: Vec<A>| x.into_iter().map(A::to::<T>).collect::<Vec<T>>();
    let of_operands = std::iter::once(o).chain(gradients).map(wide);
    of_operands.chain(results).chain([d_before]).collect()
}

/// The results of [`both_passes`], in order.
const NAMES: [&str; 8] = ["o", "dq", "dk", "dv", "largest", "inverse", "after", "d_before"];

/// Sequences of every length that may be short, with and without everything that an attention can have.
fn both_kernels_agree<T: Real + From<f32>>() {
    let mut case = 0;
    for (queries, keys) in [(1, 1), (1, 5), (2, 3), (3, 3), (4, 4), (5, 1), (5, 5), (7, 8), (8, 8), (12, 12)]
    {
        for (batch, heads, head_dim) in
            [(1, 1, 1), (5, 3, 4), (16, 2, 8), (17, 4, 20), (33, 1, 40), (40, 5, 3)]
        {
            for (causal, past) in [(false, 0), (true, 0), (true, 2)] {
                case += 1;
                let mut kept = vec![0; batch * heads * queries];
                WeightWords { seed: 3, first: 5, skip: 2 }.draw(1 << 30, keys, &mut kept);
                let dropped = DroppedWeights { kept: &kept, keys, scale: T::c(4.0 / 3.0) };
                let dropped = (case % 3 == 0).then_some(dropped);
                let scale = T::c(1.0 / (head_dim as f64).sqrt());
                let sizes = Attention { batch, heads, queries, keys, head_dim, scale, causal, past, dropped };
                let packed = case % 2 == 0 && queries == keys;
                let (memory, with_scores) =
                    (if packed { Memory::Packed } else { Memory::ByHead }, case % 5 < 2);
                let run = |kernel| both_passes::<T, T>(kernel, &sizes, memory, with_scores);
                for ((name, short), long) in NAMES.iter().zip(run(Kernel::Short)).zip(run(Kernel::Long)) {
                    let is_same =
                        bytemuck::cast_slice::<T, u8>(&short) == bytemuck::cast_slice::<T, u8>(&long);
                    assert!(is_same, "{name}: {sizes:?}, {memory:?}, with scores: {with_scores}");
                }
            }
        }
    }
}

#[test]
fn sequences_in_lanes_give_the_bits_of_queries_in_lanes() {
    both_kernels_agree::<f32>();
    both_kernels_agree::<f64>();
}

/// Operands of 16 bits give what f32 operands with the same numbers give, rounded once.
fn numbers_of_16_bits_are_those_of_f32<A: Stored>() {
    for (batch, queries, keys) in [(1, 3, 3), (19, 5, 5), (3, 41, 41), (2, 70, 66), (5, 1, 4)] {
        for (kernel, memory, with_scores) in [
            (Kernel::Long, Memory::Packed, false),
            (Kernel::Long, Memory::ByHead, true),
            (Kernel::Long, Memory::ByToken, false),
            (Kernel::Short, Memory::Packed, true),
            (Kernel::Short, Memory::ByToken, true),
        ] {
            if memory == Memory::Packed && queries != keys || kernel == Kernel::Short && queries > 8 {
                continue;
            }
            let (heads, head_dim, dropped) = (3, 8, None);
            let sizes = Attention {
                batch,
                heads,
                queries,
                keys,
                head_dim,
                scale: 0.5f32,
                causal: true,
                past: 1,
                dropped,
            };
            let wide = both_passes::<f32, f32>(kernel, &sizes, memory, with_scores);
            let narrow = both_passes::<A, f32>(kernel, &sizes, memory, with_scores);
            for (i, ((name, wide), narrow)) in NAMES.iter().zip(wide).zip(narrow).enumerate() {
                let rounded = |x: f32| if i < 4 { A::from_number(x).to::<f32>() } else { x };
                let wide: Vec<u32> = wide.into_iter().map(|x| rounded(x).to_bits()).collect();
                let narrow: Vec<u32> = narrow.into_iter().map(f32::to_bits).collect();
                assert_eq!(narrow, wide, "{name}: {kernel:?}, {memory:?}, {sizes:?}");
            }
        }
    }
}

#[test]
fn operands_of_16_bits_give_the_rounded_results_of_f32() {
    numbers_of_16_bits_are_those_of_f32::<bf16>();
    numbers_of_16_bits_are_those_of_f32::<f16>();
}
