//! A draw of random numbers that fails leaves the generator where it was: a second try gives the numbers that the
//! first would have given.

mod common;

use common::{devices, simulators};
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
    for device in devices().into_iter().chain(simulators()) {
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
