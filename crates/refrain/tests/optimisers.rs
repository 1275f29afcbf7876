//! Steps of optimisers on flat buffers: against their formulas in f64, in every dtype, and steps that are skipped.

mod common;

use common::{FLOATS, devices, tensor, values};
use refrain::optim::{
    AdamOptions, AdamWBuffers, AdamWOptions, LionBuffers, LionOptions, RmsPropBuffers, RmsPropOptions,
    Segment, SegmentTable, SgdBuffers, SgdOptions, adam, adamw, lion, rmsprop, sgd,
};
use refrain::{DType, Device, Error, Result, Step, Tensor};

/// A few blocks long, and not a multiple of any block size.
const N: usize = 3000 + 77;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    AdamW,
    Adam,
    Sgd { momentum: f64 },
    RmsProp { centered: bool, momentum: f64 },
    Lion,
}

const KINDS: [Kind; 9] = [
    Kind::AdamW,
    Kind::Adam,
    Kind::Sgd { momentum: 0.0 },
    Kind::Sgd { momentum: 0.9 },
    Kind::RmsProp { centered: false, momentum: 0.0 },
    Kind::RmsProp { centered: true, momentum: 0.0 },
    Kind::RmsProp { centered: false, momentum: 0.9 },
    Kind::RmsProp { centered: true, momentum: 0.9 },
    Kind::Lion,
];

const BETAS: (f64, f64) = (0.8, 0.9);
const ALPHA: f64 = 0.9;
const EPS: f64 = 1e-2;
const DECAY: f64 = 0.3;
const RATE: f64 = 0.05;
const SCALE: f64 = 0.5;
/// Steps done before.
const STEP: i64 = 4;

/// Flat buffers: parameters, gradients, and up to three states.
struct Bench {
    flat: [Tensor; 5],
    step: Tensor,
    rate: Tensor,
    scale: Tensor,
    segments: SegmentTable,
}

fn wave(n: usize, factor: f64) -> impl Iterator<Item = f64> {
    (0..n).map(move |i| ((i as f64 + 0.5) * factor).sin())
}

/// Two segments that differ, one that is frozen, and gaps before, between and after them.
fn mixed(n: usize) -> Vec<Segment> {
    let third = n / 3;
    vec![
        Segment { rate_factor: 0.25, ..Segment::new(3, third) },
        Segment { trainable: false, ..Segment::new(third + 10, third - 20) },
        Segment { decay_factor: 0.0, ..Segment::new(2 * third + 5, third - 9) },
    ]
}

impl Bench {
    fn new(dtype: DType, device: &Device) -> Bench {
        // Not near zero, so that signs do not depend on rounding; the mean of the squares is above the square of the mean.
        let away = |x: f64| if x < 0.0 { x - 0.3 } else { x + 0.3 };
        let buffers: [Vec<f64>; 5] = [
            wave(N, 0.1).collect(),
            wave(N, 0.7).map(away).collect(),
            wave(N, 0.03).map(|x| 0.05 * x).collect(),
            wave(N, 0.03).map(|x| 0.3 + x * x).collect(),
            wave(N, 0.2).collect(),
        ];
        Bench {
            flat: buffers.map(|x| tensor(&x, N, dtype, device)),
            step: Tensor::from_slice(&[STEP], 1, device).unwrap(),
            rate: Tensor::from_slice(&[RATE], 1, device).unwrap(),
            scale: Tensor::from_slice(&[SCALE], 1, device).unwrap(),
            segments: SegmentTable::new(&mixed(N), device).unwrap(),
        }
    }

    fn run(&self, kind: Kind) -> Result<()> {
        let [p, g, m, v, b] = &self.flat;
        let (learning_rate, gradient_scale, segments) = (&self.rate, &self.scale, &self.segments);
        let moments = AdamWBuffers {
            parameters: p,
            gradients: g,
            exp_avg: m,
            exp_avg_sq: v,
            step: &self.step,
            learning_rate,
            gradient_scale,
            segments,
        };
        match kind {
            Kind::AdamW => adamw(AdamWOptions { betas: BETAS, eps: EPS, weight_decay: DECAY }, moments),
            Kind::Adam => adam(AdamOptions { betas: BETAS, eps: EPS, weight_decay: DECAY }, moments),
            Kind::Sgd { momentum } => {
                let options = SgdOptions { momentum, weight_decay: DECAY };
                let momentum_buffer = (momentum != 0.0).then_some(b);
                let (parameters, gradients) = (p, g);
                sgd(
                    options,
                    SgdBuffers {
                        parameters,
                        gradients,
                        momentum_buffer,
                        learning_rate,
                        gradient_scale,
                        segments,
                    },
                )
            }
            Kind::RmsProp { centered, momentum } => {
                let options =
                    RmsPropOptions { alpha: ALPHA, eps: EPS, weight_decay: DECAY, momentum, centered };
                rmsprop(
                    options,
                    RmsPropBuffers {
                        parameters: p,
                        gradients: g,
                        square_avg: v,
                        grad_avg: centered.then_some(m),
                        momentum_buffer: (momentum != 0.0).then_some(b),
                        learning_rate,
                        gradient_scale,
                        segments,
                    },
                )
            }
            Kind::Lion => lion(
                LionOptions { betas: BETAS, weight_decay: DECAY },
                LionBuffers {
                    parameters: p,
                    gradients: g,
                    exp_avg: m,
                    learning_rate,
                    gradient_scale,
                    segments,
                },
            ),
        }
    }

    fn values(&self) -> [Vec<f64>; 5] {
        self.flat.each_ref().map(values)
    }
}

/// A step of one element in f64: parameter, gradient, mean, mean square, momentum.
fn formula(kind: Kind, [p, g, m, v, b]: [f64; 5], s: &Segment) -> [f64; 5] {
    let (rate, decay, g) = (RATE * s.rate_factor, DECAY * s.decay_factor, SCALE * g);
    let t = (STEP + 1) as i32;
    let adam = |p: f64, g: f64| {
        let (m, v) = (BETAS.0 * m + (1.0 - BETAS.0) * g, BETAS.1 * v + (1.0 - BETAS.1) * g * g);
        let (m_hat, v_hat) = (m / (1.0 - BETAS.0.powi(t)), v / (1.0 - BETAS.1.powi(t)));
        [p - rate * m_hat / (v_hat.sqrt() + EPS), 0.0, m, v, b]
    };
    match kind {
        Kind::AdamW => adam(p - rate * decay * p, g),
        Kind::Adam => adam(p, g + decay * p),
        Kind::Sgd { momentum } => {
            let step = momentum * b + g + decay * p;
            [p - rate * step, 0.0, m, v, if momentum == 0.0 { b } else { step }]
        }
        Kind::RmsProp { centered, momentum } => {
            let g = g + decay * p;
            let v = ALPHA * v + (1.0 - ALPHA) * g * g;
            let a = ALPHA * m + (1.0 - ALPHA) * g;
            let root = if centered { (v - a * a).sqrt() } else { v.sqrt() };
            let step = momentum * b + g / (root + EPS);
            [p - rate * step, 0.0, if centered { a } else { m }, v, if momentum == 0.0 { b } else { step }]
        }
        Kind::Lion => {
            let mixed = BETAS.0 * m + (1.0 - BETAS.0) * g;
            let sign = if mixed > 0.0 { 1.0 } else { -1.0 };
            [(1.0 - rate * decay) * p - rate * sign, 0.0, BETAS.1 * m + (1.0 - BETAS.1) * g, v, b]
        }
    }
}

#[test]
fn every_optimiser_follows_its_formula_in_each_segment_and_leaves_the_gaps_alone() {
    let segments = mixed(N);
    for device in devices() {
        for kind in KINDS {
            for dtype in FLOATS {
                let bench = Bench::new(dtype, &device);
                let before = bench.values();
                bench.run(kind).unwrap();
                let after = bench.values();
                let tolerance = 8.0 * dtype.epsilon().unwrap();
                for i in 0..N {
                    let at = |x: &[Vec<f64>; 5]| [x[0][i], x[1][i], x[2][i], x[3][i], x[4][i]];
                    let [p, _, m, v, b] = at(&before);
                    let segment = segments.iter().find(|s| (s.offset..s.offset + s.length).contains(&i));
                    let expected = match segment {
                        None => at(&before),
                        Some(s) if !s.trainable => [p, 0.0, m, v, b],
                        Some(s) => formula(kind, at(&before), s),
                    };
                    for (k, (a, e)) in at(&after).into_iter().zip(expected).enumerate() {
                        let bound = if segment.is_some_and(|s| s.trainable) { tolerance } else { 0.0 };
                        assert!(
                            (a - e).abs() <= bound * (1.0 + e.abs()),
                            "{kind:?}, {dtype} on {device}, buffer {k}, element {i}: {a}, not {e}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn a_step_that_is_skipped_changes_nothing_but_sets_gradients_to_zero() {
    for device in devices() {
        for kind in KINDS {
            for dtype in FLOATS {
                let bench = Bench::new(dtype, &device);
                // Gradients that are not finite are why steps are skipped.
                bench.flat[1].narrow(0, 100, 2).unwrap().fill(f64::INFINITY).unwrap();
                bench.flat[1].narrow(0, 200, 1).unwrap().fill(f64::NAN).unwrap();
                bench.scale.write_from(&[f64::NEG_INFINITY]).unwrap();
                let before = bench.values();
                bench.run(kind).unwrap();
                let after = bench.values();
                for k in [0, 2, 3, 4] {
                    assert_eq!(before[k], after[k], "{kind:?}, {dtype} on {device}, buffer {k}");
                }
                for s in mixed(N) {
                    let run = &after[1][s.offset..s.offset + s.length];
                    assert!(run.iter().all(|&g| g == 0.0), "{kind:?}, {dtype} on {device}");
                }
            }
        }
    }
}

#[test]
fn recorded_steps_have_the_bits_of_eager_ones() {
    for device in devices() {
        for kind in KINDS {
            let [eager, recorded] = [(); 2].map(|()| Bench::new(DType::F32, &device));
            let gradients = eager.flat[1].copy().unwrap();
            let mut step = Step::new(&device, |g: &[Tensor]| {
                recorded.flat[1].copy_from(&g[0])?;
                recorded.run(kind)?;
                Ok(vec![])
            });
            for _ in 0..3 {
                eager.flat[1].copy_from(&gradients).unwrap();
                eager.run(kind).unwrap();
                step.call(std::slice::from_ref(&gradients)).unwrap();
            }
            step.finish().unwrap();
            assert_eq!(eager.values(), recorded.values(), "{kind:?} on {device}");
        }
    }
}

#[test]
fn broken_arguments_are_named() {
    for device in devices() {
        let bench = Bench::new(DType::F32, &device);
        let before = bench.values();
        let [p, g, m, v, b] = &bench.flat;
        let rms = |options: RmsPropOptions, grad_avg, momentum_buffer| {
            let (parameters, gradients, square_avg) = (p, g, v);
            let (learning_rate, gradient_scale, segments) = (&bench.rate, &bench.scale, &bench.segments);
            let buffers = RmsPropBuffers {
                parameters,
                gradients,
                square_avg,
                grad_avg,
                momentum_buffer,
                learning_rate,
                gradient_scale,
                segments,
            };
            rmsprop(options, buffers).unwrap_err()
        };
        let plain = RmsPropOptions::default();
        let centered = RmsPropOptions { centered: true, ..plain };
        let cases = [
            (rms(centered, None, None), "if and only if `centered`"),
            (rms(plain, Some(m), None), "if and only if `centered`"),
            (rms(plain, None, Some(b)), "if and only if momentum is not 0"),
            (rms(RmsPropOptions { alpha: 1.0, ..plain }, None, None), "alpha is 1"),
            (rms(RmsPropOptions { eps: -1.0, ..plain }, None, None), "eps is -1"),
            (rms(RmsPropOptions { weight_decay: f64::NAN, ..plain }, None, None), "weight_decay is NaN"),
            (rms(RmsPropOptions { momentum: 2.0, ..plain }, None, Some(b)), "momentum is 2"),
        ];
        for (error, part) in cases {
            assert!(matches!(error, Error::InvalidArgument { op: "rmsprop", .. }), "{error}");
            assert!(error.to_string().contains(part), "{error}");
        }
        assert!(matches!(rms(centered, Some(v), None), Error::Aliased { op: "rmsprop", .. }));
        let lion_with = |options, exp_avg, learning_rate| {
            let (parameters, gradients) = (p, g);
            let (gradient_scale, segments) = (&bench.scale, &bench.segments);
            let buffers =
                LionBuffers { parameters, gradients, exp_avg, learning_rate, gradient_scale, segments };
            lion(options, buffers).unwrap_err()
        };
        let plain = LionOptions::default();
        let error = lion_with(LionOptions { betas: (0.9, 1.0), ..plain }, m, &bench.rate);
        assert!(error.to_string().contains("betas.1 is 1"), "{error}");
        assert!(matches!(lion_with(plain, p, &bench.rate), Error::Aliased { op: "lion", .. }));
        assert!(matches!(lion_with(plain, m, &bench.step), Error::DTypeMismatch { op: "lion", .. }));
        let moments = AdamWBuffers {
            parameters: p,
            gradients: g,
            exp_avg: m,
            exp_avg_sq: v,
            step: &bench.rate,
            learning_rate: &bench.rate,
            gradient_scale: &bench.scale,
            segments: &bench.segments,
        };
        let error = adam(AdamOptions::default(), moments).unwrap_err();
        assert!(matches!(error, Error::DTypeMismatch { op: "adam", .. }), "{error}");
        let error = adam(AdamOptions { eps: f64::NAN, ..AdamOptions::default() }, moments).unwrap_err();
        assert!(error.to_string().contains("adam") && error.to_string().contains("eps is NaN"), "{error}");
        assert_eq!(bench.values(), before);
    }
}
