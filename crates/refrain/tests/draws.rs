//! A draw of random numbers that fails leaves the generator where it was: a second try gives the numbers that the
//! first would have given.

mod common;

use std::cell::Cell;
use std::slice::from_ref;

use common::{devices, simulators, tensor, values};
use refrain::{DType, Device, Error, Generator, Profile, Result, SdpaOptions, Simulator, Step, Tensor};

const F32: DType = DType::F32;

/// Draws that must fail, by name.
fn failing(device: &Device, generator: &Generator) -> Vec<(&'static str, Result<()>)> {
    let ones = |dims: &[usize]| Tensor::ones(dims, F32, device).unwrap();
    let x = ones(&[3, 5]);
    let leaf = ones(&[3, 5]);
    leaf.set_requires_grad(true).unwrap();
    let repeated = ones(&[5]).broadcast_to([3, 5]).unwrap();
    let whole = Tensor::ones([3, 5], DType::I64, device).unwrap();
    let attention = |x: &Tensor, scores: Option<&Tensor>| {
        let options = SdpaOptions { dropout: Some((0.5, generator)), scores, ..SdpaOptions::default() };
        x.scaled_dot_product_attention_with(x, x, &options).map(drop)
    };
    vec![
        ("normal_into, aliased", generator.normal_into(&repeated)),
        ("uniform_into, aliased", generator.uniform_into(&repeated)),
        ("uniform_into a leaf", generator.uniform_into(&leaf)),
        ("normal_into integers", generator.normal_into(&whole)),
        ("uniform, no memory", generator.uniform([1 << 48], F32).map(drop)),
        ("normal, no such shape", generator.normal([usize::MAX, 2], F32).map(drop)),
        ("dropout_into another shape", x.dropout_into(0.5, generator, &ones(&[5, 3]))),
        ("dropout_into repeated memory", x.dropout_into(0.5, generator, &repeated)),
        ("dropout_into a leaf", x.dropout_into(0.5, generator, &leaf)),
        ("dropout of too much", x.dropout(1.0, generator).map(drop)),
        ("dropout of integers", whole.dropout(0.5, generator).map(drop)),
        ("dropout with a residual of another shape", x.dropout_add(0.5, generator, &ones(&[5, 3])).map(drop)),
        ("attention with scores of another shape", attention(&ones(&[2, 3, 4]), Some(&x))),
        ("attention of integers", attention(&Tensor::ones([2, 3, 4], DType::I64, device).unwrap(), None)),
    ]
}

fn numbers(generator: &Generator) -> Vec<f32> {
    generator.normal([6], F32).unwrap().to_vec().unwrap()
}

#[test]
fn a_draw_that_fails_leaves_the_generator_where_it_was() {
    for device in devices() {
        let generator = Generator::from_state(&device, 7, 40).unwrap();
        let expected = numbers(&Generator::from_state(&device, 7, 40).unwrap());
        for (name, result) in failing(&device, &generator) {
            assert!(result.is_err(), "{name} on {device}");
            assert_eq!(generator.state().unwrap(), (7, 40), "{name} on {device}");
        }
        assert_eq!(numbers(&generator), expected, "{device}");
    }
}

#[test]
fn a_draw_without_memory_or_whose_launch_is_refused_leaves_the_generator_where_it_was() {
    for profile in [Profile::Discrete, Profile::Unified] {
        // The first allocation is that of the generator's state.
        for simulator in [Simulator::new(profile).out_of_memory_at(2), Simulator::new(profile).fail_launch(1)]
        {
            let generator = Generator::from_state(&simulator.device(), 7, 40).unwrap();
            let error = generator.normal([6], F32).unwrap_err();
            assert!(matches!(error, Error::OutOfMemory { .. } | Error::Device { .. }), "{error}");
            assert_eq!(generator.state().unwrap(), (7, 40), "{simulator:?}");
        }
    }
}

#[test]
fn a_draw_that_fails_within_a_step_is_none_in_its_replays() {
    for device in devices().chain(simulators()) {
        let run = |generator: &Generator, fails: bool| -> Result<Tensor> {
            let before = generator.uniform([6], F32)?;
            if fails {
                let repeated = before.narrow(0, 0, 1)?.broadcast_to([5])?;
                assert!(generator.normal_into(&repeated).is_err());
            }
            before.add(&generator.uniform([6], F32)?)
        };
        let [eager, recorded] = [(); 2].map(|()| Generator::new(&device, 3).unwrap());
        let mut step = Step::new(&device, |_| Ok(vec![run(&recorded, true)?]));
        for call in 0..4 {
            let expected: Vec<f32> = run(&eager, false).unwrap().to_vec().unwrap();
            let outputs = step.call(&[]).unwrap();
            assert_eq!(outputs.to_vec::<f32>(0).unwrap(), expected, "call {call} on {device}");
        }
        assert_eq!(recorded.state().unwrap(), eager.state().unwrap(), "{device}");
        step.finish().unwrap();
    }
}

/// Something that is drawn for a batch `x` `[batch, 3, 5]` of numbers between 0 and 1.
type Draw = fn(&Generator, &Tensor) -> Result<Tensor>;

fn draws() -> Vec<(&'static str, Draw)> {
    fn attention(generator: &Generator, x: &Tensor) -> Result<Tensor> {
        let options = SdpaOptions { dropout: Some((0.5, generator)), ..SdpaOptions::default() };
        Ok(x.scaled_dot_product_attention_with(x, x, &options)?.0)
    }
    vec![
        ("uniform f64", |g, x| g.uniform(x.shape(), DType::F64)),
        ("uniform f32", |g, x| g.uniform(x.shape(), F32)),
        ("uniform f16", |g, x| g.uniform(x.shape(), DType::F16)),
        ("uniform bf16", |g, x| g.uniform(x.shape(), DType::BF16)),
        ("normal f64", |g, x| g.normal(x.shape(), DType::F64)),
        ("normal f32", |g, x| g.normal(x.shape(), F32)),
        ("normal bf16", |g, x| g.normal(x.shape(), DType::BF16)),
        ("randint", |g, x| g.randint(0, 1000, x.shape())),
        ("bernoulli", |g, x| g.bernoulli(x)),
        ("multinomial", |g, x| g.multinomial(x, 2, false)),
        ("multinomial with replacement", |g, x| g.multinomial(x, 7, true)),
        ("dropout", |g, x| x.dropout(0.5, g)),
        ("dropout bf16", |g, x| x.to_dtype(DType::BF16)?.dropout(0.5, g)),
        ("dropout_add", |g, x| x.dropout_add(0.5, g, x)),
        ("dropout of batch times 3 rows", |g, x| x.reshape([x.numel() / 5, 5])?.dropout(0.5, g)),
        ("dropout of attention weights", attention),
        // Steps fuse dropout with its neighbours, unless a row has a part of a block of words.
        ("dropout between others", |g, x| x.mul_scalar(2.0)?.dropout(0.5, g)?.add_scalar(1.0)),
        ("dropout of 16 columns between others", |g, x| {
            let x = x.reshape([x.numel() / 15, 15])?;
            let x = Tensor::concat(&[&x, &x.narrow(1, 0, 1)?], 1)?;
            x.mul_scalar(2.0)?.dropout(0.5, g)?.add_scalar(1.0)
        }),
    ]
}

#[test]
fn each_part_of_a_batch_gets_its_part_of_the_numbers_of_the_whole() {
    const ROWS: usize = 150;
    let numbers: Vec<f64> = (0..ROWS * 15).map(|i| (i as f64 * 0.7).sin().abs()).collect();
    for device in devices() {
        let x = tensor(&numbers, [ROWS, 3, 5], F32, &device);
        let fresh = || Generator::from_state(&device, 7, 40).unwrap();
        for (name, draw) in draws() {
            let whole = fresh();
            let twice = [(); 2].map(|()| draw(&whole, &x).unwrap());
            // 15 words for each row, so parts begin anywhere in a block of four words.
            for part in [0..1, 1..2, 2..3, 3..7, 7..ROWS] {
                let context = format!("{name} of rows {part:?} on {device}");
                let own = x.narrow(0, part.start, part.len()).unwrap();
                let [eager, recorded] = [fresh(), fresh()];
                let part_of = |g: &Generator| g.for_batch_rows(part.clone(), ROWS).unwrap();
                let (drawn, in_step) = (part_of(&eager), part_of(&recorded));
                let mut step = Step::new(&device, |x| Ok(vec![draw(&in_step, &x[0])?]));
                for whole in &twice {
                    let each = whole.dims()[0] / ROWS;
                    let expected = values(&whole.narrow(0, part.start * each, part.len() * each).unwrap());
                    assert_eq!(values(&draw(&drawn, &own).unwrap()), expected, "{context}");
                    let replayed = step.call(&[own.clone()]).unwrap().copy(0).unwrap();
                    assert_eq!(values(&replayed), expected, "{context}, recorded");
                }
                step.finish().unwrap();
                for generator in [&eager, &recorded] {
                    assert_eq!(generator.state().unwrap(), whole.state().unwrap(), "{context}");
                }
            }
        }
    }
}

#[test]
fn a_step_that_draws_for_other_rows_than_when_it_was_recorded_is_found() {
    let numbers: Vec<f64> = (0..2 * 15).map(|i| (i as f64 * 0.7).sin().abs()).collect();
    for device in devices() {
        let x = tensor(&numbers, [2, 3, 5], F32, &device);
        for (name, draw) in draws() {
            let generator = Generator::from_state(&device, 7, 40).unwrap();
            let first = Cell::new(4);
            let mut step = Step::new(&device, |x| {
                let part = generator.for_batch_rows(first.get()..first.get() + 2, 12)?;
                Ok(vec![draw(&part, &x[0])?])
            });
            step.call(from_ref(&x)).unwrap();
            step.check().unwrap();
            first.set(6);
            let error = step.check().unwrap_err();
            assert!(matches!(error, Error::RecordingChanged { .. }), "{name} on {device}: {error}");
            assert!(error.to_string().contains("rows before"), "{name} on {device}: {error}");
            first.set(4);
            step.finish().unwrap();
        }
    }
}

#[test]
fn all_parts_of_a_batch_draw_alike_what_is_not_of_the_batch() {
    for device in devices() {
        let fresh = || Generator::from_state(&device, 7, 40).unwrap();
        let draws: [(&str, Draw); 5] = [
            ("no multiple of the rows", |g, _| g.normal([5], F32)),
            ("a scalar", |g, _| g.uniform((), F32)),
            ("drawn for the whole", |g, _| g.whole().uniform([6, 2], F32)),
            ("an order", |g, _| g.permutation(6)),
            ("positions of one row of weights", |g, w| g.multinomial(w, 3, true)),
        ];
        let weights = tensor(&[1.0, 2.0, 3.0, 4.0], [4], F32, &device);
        for (name, draw) in draws {
            let one = fresh();
            let expected = values(&draw(&one, &weights).unwrap());
            for part in [0..2, 4..6] {
                let generator = fresh();
                let drawn = draw(&generator.for_batch_rows(part, 8).unwrap(), &weights).unwrap();
                assert_eq!(values(&drawn), expected, "{name} on {device}");
                assert_eq!(generator.state().unwrap(), one.state().unwrap(), "{name} on {device}");
            }
        }
        for (rows, of) in [(3..3, 7), (5..8, 7), (0..1, 0)] {
            let text = fresh().for_batch_rows(rows.clone(), of).unwrap_err().to_string();
            assert!(text.contains(&format!("rows {rows:?} are no part of a batch of {of} rows")), "{text}");
        }
    }
}

#[test]
fn a_copied_state_gives_the_same_numbers_eager_and_in_every_replay() {
    for device in devices().chain(simulators()) {
        let numbers = |generator: &Generator| generator.normal([6], F32);
        let run = |generator: &Generator, ahead: &Generator| -> Result<Vec<Tensor>> {
            let (first, other) = (numbers(generator)?, numbers(ahead)?);
            ahead.copy_state_from(generator)?;
            Ok(vec![first, other, numbers(ahead)?, numbers(generator)?])
        };
        let [eager, recorded] =
            [(); 2].map(|()| [3, 4].map(|seed| Generator::from_state(&device, seed, 9).unwrap()));
        // What was drawn before is part of the state.
        [&eager, &recorded].iter().for_each(|[a, b]| drop([numbers(a).unwrap(), numbers(b).unwrap()]));
        let mut step = Step::new(&device, |_| Ok(run(&recorded[0], &recorded[1])?));
        for call in 0..4 {
            let expected: Vec<_> = run(&eager[0], &eager[1]).unwrap().iter().map(values).collect();
            assert_eq!(expected[2], expected[3]);
            let outputs = step.call(&[]).unwrap();
            for (at, expected) in expected.iter().enumerate() {
                assert_eq!(values(&outputs.copy(at).unwrap()), *expected, "call {call} on {device}");
            }
        }
        for (a, b) in recorded.iter().zip(&eager) {
            assert_eq!(a.state().unwrap(), b.state().unwrap(), "{device}");
        }
        step.finish().unwrap();
        let other = Generator::new(&"sim".parse().unwrap(), 1).unwrap();
        assert!(
            matches!(eager[0].copy_state_from(&other), Err(Error::DeviceMismatch { .. }))
                || device == *other.device()
        );
    }
}
