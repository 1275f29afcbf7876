use crate::testing::devices;
use refrain::optim::{
    AdamWBuffers, AdamWOptions, Schedule, Segment, SegmentTable, SgdBuffers, SgdOptions, adamw,
    clip_coefficient, clip_coefficient_into, learning_rate, learning_rate_into, sgd,
};
use refrain::{DType, Device, Error, Result, Tensor, bf16, f16};

/// A few tasks long, and not a multiple of any block size.
const LONG: usize = 3 * (1 << 14) + 77;

fn wave(n: usize, factor: f64) -> Vec<f64> {
    (0..n).map(|i| (i as f64 * factor).sin()).collect()
}

fn tensor(values: &[f64], dtype: DType, device: &Device) -> Tensor {
    Tensor::from_slice(values, values.len(), device).unwrap().to_dtype(dtype).unwrap()
}

fn one(value: f64, device: &Device) -> Tensor {
    Tensor::from_slice(&[value], 1, device).unwrap()
}

fn values(t: &Tensor) -> Vec<f64> {
    t.to_dtype(DType::F64).unwrap().to_vec().unwrap()
}

/// The flat buffers and controls of a step.
struct Bench {
    p: Tensor,
    g: Tensor,
    m: Tensor,
    v: Tensor,
    step: Tensor,
    rate: Tensor,
    scale: Tensor,
    segments: SegmentTable,
}

impl Bench {
    fn new(n: usize, dtype: DType, segments: &[Segment], device: &Device) -> Bench {
        let square: Vec<f64> = wave(n, 0.03).iter().map(|v| v * v).collect();
        Bench {
            p: tensor(&wave(n, 0.1), dtype, device),
            g: tensor(&wave(n, 0.7), dtype, device),
            m: tensor(&wave(n, 0.03), dtype, device),
            v: tensor(&square, dtype, device),
            step: Tensor::from_slice(&[4i64], 1, device).unwrap(),
            rate: one(0.01, device),
            scale: one(0.5, device),
            segments: SegmentTable::new(segments, device).unwrap(),
        }
    }

    fn adamw(&self) -> Result<()> {
        let options = AdamWOptions { betas: (0.8, 0.9), eps: 1e-3, weight_decay: 0.3 };
        adamw(options, self.buffers())
    }

    fn buffers(&self) -> AdamWBuffers<'_> {
        AdamWBuffers {
            parameters: &self.p,
            gradients: &self.g,
            exp_avg: &self.m,
            exp_avg_sq: &self.v,
            step: &self.step,
            learning_rate: &self.rate,
            gradient_scale: &self.scale,
            segments: &self.segments,
        }
    }

    fn sgd(&self, momentum: f64) -> Result<()> {
        let buffers = SgdBuffers {
            parameters: &self.p,
            gradients: &self.g,
            momentum_buffer: (momentum != 0.0).then_some(&self.m),
            learning_rate: &self.rate,
            gradient_scale: &self.scale,
            segments: &self.segments,
        };
        sgd(SgdOptions { momentum, weight_decay: 0.3 }, buffers)
    }

    fn state(&self) -> [Vec<f64>; 4] {
        [values(&self.p), values(&self.g), values(&self.m), values(&self.v)]
    }
}

/// Two segments that differ, one that is frozen, and gaps before, between and after them. All of them cross task
/// borders.
fn mixed(n: usize) -> Vec<Segment> {
    let third = n / 3;
    vec![
        Segment { rate_factor: 0.25, ..Segment::new(3, third) },
        Segment { trainable: false, ..Segment::new(third + 10, third - 20) },
        Segment::new(2 * third, 0),
        Segment { decay_factor: 0.0, ..Segment::new(2 * third + 5, third - 9) },
    ]
}

#[test]
fn adamw_follows_its_formula_in_each_segment_and_leaves_the_gaps_alone() {
    for device in devices() {
        for (dtype, tolerance) in
            [(DType::F64, 1e-14), (DType::F32, 1e-6), (DType::F16, 2e-3), (DType::BF16, 2e-2)]
        {
            let segments = mixed(LONG);
            let bench = Bench::new(LONG, dtype, &segments, &device);
            let before = bench.state();
            bench.adamw().unwrap();
            let after = bench.state();
            for i in 0..LONG {
                let at = |s: &[Vec<f64>; 4]| [s[0][i], s[1][i], s[2][i], s[3][i]];
                let [p, g, m, v] = at(&before);
                let expected = match segments.iter().find(|s| (s.offset..s.offset + s.length).contains(&i)) {
                    None => [p, g, m, v],
                    Some(s) if !s.trainable => [p, 0.0, m, v],
                    Some(s) => {
                        let (rate, g) = (0.01 * s.rate_factor, 0.5 * g);
                        let (m, v) = (0.8 * m + 0.2 * g, 0.9 * v + 0.1 * g * g);
                        let (m_hat, v_hat) = (m / (1.0 - 0.8f64.powi(5)), v / (1.0 - 0.9f64.powi(5)));
                        let p = p - rate * 0.3 * s.decay_factor * p - rate * m_hat / (v_hat.sqrt() + 1e-3);
                        [p, 0.0, m, v]
                    }
                };
                for (a, e) in at(&after).into_iter().zip(expected) {
                    assert!((a - e).abs() <= tolerance * (1.0 + e.abs()), "{dtype}, element {i}: {a} != {e}");
                }
            }
        }
    }
}

#[test]
fn sgd_follows_its_formula_in_each_segment_and_leaves_the_gaps_alone() {
    for device in devices() {
        for momentum in [0.0, 0.9] {
            let segments = mixed(LONG);
            let bench = Bench::new(LONG, DType::F64, &segments, &device);
            let before = bench.state();
            bench.sgd(momentum).unwrap();
            let after = bench.state();
            for i in 0..LONG {
                let (p, g, b) = (before[0][i], before[1][i], before[2][i]);
                let expected = match segments.iter().find(|s| (s.offset..s.offset + s.length).contains(&i)) {
                    None => [p, g, b],
                    Some(s) if !s.trainable => [p, 0.0, b],
                    Some(s) => {
                        let step = momentum * b + 0.5 * g + 0.3 * s.decay_factor * p;
                        let p = p - 0.01 * s.rate_factor * step;
                        [p, 0.0, if momentum == 0.0 { b } else { step }]
                    }
                };
                for (k, e) in expected.into_iter().enumerate() {
                    let a = after[k][i];
                    assert!((a - e).abs() <= 1e-14 * (1.0 + e.abs()), "{momentum}, element {i}: {a} != {e}");
                }
            }
        }
    }
}

#[test]
fn the_norm_is_that_of_all_elements_and_nan_stays() {
    for device in devices() {
        let x = wave(LONG, 0.37);
        let expected = x.iter().map(|v| v * v).sum::<f64>().sqrt();
        let (norm, coefficient) = clip_coefficient(&tensor(&x, DType::F64, &device), 2.0).unwrap();
        assert!((values(&norm)[0] - expected).abs() < 1e-12 * expected);
        assert_eq!(values(&coefficient)[0], 2.0 / (values(&norm)[0] + 1e-6));
        let huge = tensor(&[1e30, 1e30], DType::F32, &device);
        assert!(values(&clip_coefficient(&huge, f64::INFINITY).unwrap().0)[0].is_finite());
        let (norm, coefficient) =
            clip_coefficient(&tensor(&[1.0, f64::NAN], DType::F64, &device), 1.0).unwrap();
        assert!(values(&norm)[0].is_nan() && values(&coefficient)[0].is_nan());
        let nothing = clip_coefficient(&tensor(&[], DType::F32, &device), 1.0).unwrap();
        assert_eq!((values(&nothing.0), values(&nothing.1)), (vec![0.0], vec![1.0]));
        let halves = Tensor::from_slice(&[f16::from_f32(3.0), f16::from_f32(4.0)], 2, &device).unwrap();
        assert_eq!(values(&clip_coefficient(&halves, f64::INFINITY).unwrap().1), [1.0]);
        let brain = Tensor::from_slice(&[bf16::from_f32(3.0), bf16::from_f32(4.0)], 2, &device).unwrap();
        assert_eq!(values(&clip_coefficient(&brain, 1.0).unwrap().0), [5.0]);
    }
}

#[test]
fn a_step_between_forward_and_backward_is_caught() {
    for device in devices() {
        let bench = Bench::new(8, DType::F32, &[Segment::new(0, 4)], &device);
        let weight = bench.p.narrow(0, 0, 4).unwrap();
        let beyond = bench.p.narrow(0, 4, 4).unwrap();
        weight.set_requires_grad(true).unwrap();
        beyond.set_requires_grad(true).unwrap();
        let loss = weight.square().unwrap().sum(()).unwrap();
        bench.adamw().unwrap();
        let error = loss.backward().unwrap_err();
        assert!(matches!(error, Error::SavedValueOverwritten { op: "square", by: "adamw", .. }), "{error}");
    }
}

#[test]
fn settings_change_in_place() {
    for device in devices() {
        let bench = Bench::new(4, DType::F64, &[Segment::new(0, 4)], &device);
        let frozen = Segment { trainable: false, ..Segment::new(0, 4) };
        bench.segments.write_from(&[frozen]).unwrap();
        assert_eq!(bench.segments.segments().unwrap(), [frozen]);
        let before = values(&bench.p);
        bench.adamw().unwrap();
        assert_eq!(values(&bench.p), before);
        let moved = bench.segments.write_from(&[Segment::new(1, 3)]).unwrap_err();
        assert!(moved.to_string().contains("fixed"), "{moved}");
    }
}

#[test]
fn broken_arguments_are_named() {
    for device in devices() {
        let message = |r: Result<()>| r.unwrap_err().to_string();
        let table = |segments: &[Segment]| SegmentTable::new(segments, &device).map(|_| ());
        assert!(message(table(&[Segment::new(4, 4), Segment::new(7, 1)])).contains("segment 1"));
        assert!(message(table(&[Segment::new(usize::MAX, 2)])).contains("too long"));
        let negative = Segment { rate_factor: -1.0, ..Segment::new(0, 1) };
        assert!(message(table(&[negative])).contains("rate_factor -1"));

        let bench = Bench::new(8, DType::F32, &[Segment::new(0, 9)], &device);
        assert!(message(bench.adamw()).contains("reaches to element 9"));
        let bench = Bench::new(8, DType::F32, &[Segment::new(0, 8)], &device);
        let before = bench.state();
        let with = |change: &dyn Fn(&mut AdamWBuffers<'_>)| {
            let mut buffers = bench.buffers();
            change(&mut buffers);
            adamw(AdamWOptions::default(), buffers)
        };
        assert!(matches!(with(&|b| b.exp_avg = b.exp_avg_sq), Err(Error::Aliased { op: "adamw", .. })));
        // A buffer of one element could also be its own control tensor.
        let single = Bench::new(1, DType::F64, &[Segment::new(0, 1)], &device);
        let (b, unchanged) = (single.buffers(), single.state());
        for control in [b.parameters, b.gradients, b.exp_avg, b.exp_avg_sq] {
            for buffers in [
                AdamWBuffers { learning_rate: control, ..b },
                AdamWBuffers { gradient_scale: control, ..b },
                AdamWBuffers { learning_rate: control, gradient_scale: control, ..b },
            ] {
                let e = adamw(AdamWOptions::default(), buffers).unwrap_err();
                assert!(matches!(e, Error::Aliased { op: "adamw", .. }), "{e}");
            }
            for momentum_buffer in [None, Some(b.exp_avg)] {
                let options = SgdOptions {
                    momentum: if momentum_buffer.is_some() { 0.5 } else { 0.0 },
                    ..Default::default()
                };
                for (learning_rate, gradient_scale) in
                    [(b.parameters, b.gradient_scale), (b.learning_rate, b.gradients)]
                {
                    let (parameters, gradients, segments) = (b.parameters, b.gradients, b.segments);
                    let e = sgd(
                        options,
                        SgdBuffers {
                            parameters,
                            gradients,
                            momentum_buffer,
                            learning_rate,
                            gradient_scale,
                            segments,
                        },
                    );
                    assert!(matches!(e, Err(Error::Aliased { op: "sgd", .. })), "{e:?}");
                }
            }
        }
        assert_eq!(single.state(), unchanged);
        assert!(matches!(with(&|b| b.step = b.learning_rate), Err(Error::DTypeMismatch { op: "adamw", .. })));
        let (wide, short) = (
            tensor(&[0.0; 16], DType::F32, &device).view([8, 2]).unwrap(),
            tensor(&[0.0; 7], DType::F32, &device),
        );
        let strided = wide.select(1, 0).unwrap();
        let mut buffers = bench.buffers();
        buffers.exp_avg = &strided;
        assert!(message(adamw(AdamWOptions::default(), buffers)).contains("contiguous"));
        buffers.exp_avg = &short;
        assert!(matches!(adamw(AdamWOptions::default(), buffers), Err(Error::ShapeMismatch { .. })));
        for options in [
            AdamWOptions { betas: (1.0, 0.9), ..Default::default() },
            AdamWOptions { eps: -1.0, ..Default::default() },
            AdamWOptions { weight_decay: f64::NAN, ..Default::default() },
        ] {
            assert!(matches!(
                adamw(options, bench.buffers()),
                Err(Error::InvalidArgument { op: "adamw", .. })
            ));
        }
        let whole = SgdBuffers {
            parameters: &bench.p,
            gradients: &bench.g,
            momentum_buffer: None,
            learning_rate: &bench.rate,
            gradient_scale: &bench.scale,
            segments: &bench.segments,
        };
        let options = SgdOptions { momentum: 0.5, weight_decay: 0.0 };
        assert!(message(sgd(options, whole)).contains("momentum buffer"));
        assert!(message(clip_coefficient(&bench.g, -1.0).map(|_| ())).contains("max_norm"));
        assert!(message(clip_coefficient_into(&bench.g, 1.0, &bench.rate, &bench.rate)).contains("share"));
        bench.p.set_requires_grad(true).unwrap();
        assert!(message(bench.adamw()).contains("requires a gradient"));
        assert_eq!(bench.state(), before);
    }
}

#[test]
fn schedules_run_on_the_device_and_stay_at_their_last_value() {
    for device in devices() {
        let step = Tensor::from_slice(&[0i64], 1, &device).unwrap();
        let rate = one(0.0, &device);
        let schedules = [
            Schedule::Constant { lr: 0.5 },
            Schedule::Cosine { lr: 0.5, eta_min: 0.1, t_max: 4 },
            Schedule::OneCycle {
                max_lr: 0.5,
                total_steps: 6,
                pct_start: 0.5,
                div_factor: 5.0,
                final_div_factor: 10.0,
            },
            Schedule::Warmup { lr: 0.5, warmup_steps: 3, start_factor: 0.2 },
            Schedule::WarmupCosine {
                lr: 0.5,
                warmup_steps: 2,
                total_steps: 6,
                start_factor: 0.2,
                eta_min: 0.1,
            },
        ];
        let expected = [[0.5, 0.5], [0.5, 0.1], [0.1, 0.01], [0.1, 0.5], [0.1, 0.1]];
        for (schedule, [first, last]) in schedules.into_iter().zip(expected) {
            for t in [0i64, 1, 2, 3, 5, 6, 1000] {
                step.write_from(&[t]).unwrap();
                learning_rate_into(schedule, &step, &rate).unwrap();
                assert_eq!(values(&rate), values(&learning_rate(schedule, &step).unwrap()));
                assert_eq!(values(&rate)[0], schedule.at(t as u64));
            }
            assert!((schedule.at(0) - first).abs() < 1e-15, "{schedule:?}: {}", schedule.at(0));
            assert!((schedule.at(1000) - last).abs() < 1e-15, "{schedule:?}: {}", schedule.at(1000));
        }
        for broken in [
            Schedule::Constant { lr: f64::NAN },
            Schedule::Cosine { lr: 0.5, eta_min: 0.1, t_max: 0 },
            Schedule::Warmup { lr: 0.5, warmup_steps: 3, start_factor: 1.5 },
            Schedule::WarmupCosine {
                lr: 0.5,
                warmup_steps: 7,
                total_steps: 6,
                start_factor: 0.2,
                eta_min: 0.1,
            },
        ] {
            let error = learning_rate(broken, &step).unwrap_err();
            assert!(matches!(error, Error::InvalidArgument { op: "learning_rate", .. }), "{error}");
        }
        assert!(learning_rate(schedules[0], &rate).is_err());
    }
}
