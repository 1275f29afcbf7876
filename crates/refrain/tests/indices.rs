//! Indices in i32 and i64 mean the same, in every operation that takes them.

mod common;

use common::{devices, tensor, turn, values};
use refrain::{DType, Device, DeviceKind, Error, IndexReduction, Profile, Result, Simulator, Step, Tensor};

type Indexed = fn(&Tensor, &Tensor) -> Result<Tensor>;

/// Each operation over a table of 5 x 3 and the ids of a 2 x 3 matrix.
const OPERATIONS: [(&str, Indexed); 11] = [
    ("gather", |x, ids| x.gather(0, ids)),
    ("index_select", |x, ids| x.index_select(0, &ids.flatten(0, -1)?)),
    ("index_select, last axis", |x, ids| x.transpose(0, 1)?.index_select(-1, &ids.select(0, 1)?)),
    ("embedding", |x, ids| x.embedding(ids)),
    ("index_add", |x, ids| x.index_add(0, &ids.select(0, 0)?, &x.narrow(0, 1, 3)?)),
    ("index_reduce", |x, ids| {
        x.index_reduce(0, &ids.select(0, 0)?, &x.narrow(0, 1, 3)?, IndexReduction::Amax, false)
    }),
    ("scatter_add", |x, ids| x.scatter_add(0, ids, &x.narrow(0, 1, 2)?)),
    ("windows", |x, ids| x.windows(&ids.flatten(0, -1)?, 1)),
    ("cross_entropy", |x, ids| x.transpose(0, 1)?.cross_entropy(&ids.select(0, 0)?)),
    ("cross_entropy_smoothed", |x, ids| x.transpose(0, 1)?.cross_entropy_smoothed(&ids.select(0, 1)?, 0.1)),
    ("one_hot", |x, ids| x.transpose(0, 1)?.mul(&ids.select(0, 0)?.one_hot(5, x.dtype())?)),
];

/// Ids of 0 to 4, in an order of axes of their own, so that they lie strided.
fn ids(dtype: DType, device: &Device) -> Tensor {
    tensor(&[4.0, 1.0, 0.0, 1.0, 2.0, 4.0], [3, 2], dtype, device).transpose(0, 1).unwrap()
}

#[test]
fn i32_gives_the_bits_that_i64_gives_forward_and_backward() {
    let _turn = turn();
    for device in devices() {
        for dtype in common::FLOATS {
            for (name, run) in OPERATIONS {
                let [narrow, wide] = [DType::I32, DType::I64].map(|index| {
                    let table: Vec<f64> = (0..15).map(|i| (i as f64 * 0.7).sin()).collect();
                    let x = tensor(&table, [5, 3], dtype, &device);
                    x.set_requires_grad(true).unwrap();
                    let y = run(&x, &ids(index, &device)).unwrap();
                    y.square().unwrap().sum(()).unwrap().backward().unwrap();
                    (values(&y), values(&x.grad().unwrap()))
                });
                assert!(wide.1.iter().any(|&g| g != 0.0), "{name}");
                assert_eq!(narrow, wide, "{name}, {dtype}, {device}");
            }
        }
    }
}

#[test]
fn what_is_out_of_range_is_named_in_i32_as_in_i64() {
    let _turn = turn();
    for device in devices() {
        for index in [DType::I32, DType::I64] {
            for bad in [5.0, -1.0] {
                let x = tensor(&[0.5; 15], [5, 3], DType::F32, &device);
                let ids = tensor(&[0.0, bad, bad, bad, bad, bad], [2, 3], index, &device);
                for (name, run) in OPERATIONS {
                    let error = run(&x, &ids).and_then(|_| device.synchronize()).unwrap_err().to_string();
                    assert!(error.contains(&format!("index {bad} ")), "{name}, {index}, {device}: {error}");
                    assert!(error.contains("out of range"), "{name}, {index}, {device}: {error}");
                }
            }
        }
    }
}

#[test]
fn what_is_out_of_range_is_named_by_a_replay_though_nobody_reads_the_result() {
    let _turn = turn();
    for device in devices() {
        let x = tensor(&[0.5; 15], [5, 3], DType::F32, &device);
        let count = Tensor::zeros([1], DType::F32, &device).unwrap();
        let ids = |id: f64| tensor(&[id, 1.0, 2.0, 3.0, 4.0, id], [2, 3], DType::I64, &device);
        for (name, run) in OPERATIONS {
            // As it is, and with a gradient that nobody reads either.
            for needs_gradient in [false, true] {
                let mut step = Step::new(&device, |ids| {
                    let x = x.copy()?;
                    x.set_requires_grad(needs_gradient)?;
                    let y = run(&x, &ids[0])?;
                    if needs_gradient {
                        y.sum(())?.backward()?;
                    }
                    count.add_scalar_assign(1.0)?;
                    Ok(vec![])
                });
                let mut call = |id| step.call(&[ids(id)]).map(drop).and_then(|()| device.synchronize());
                call(4.0).unwrap();
                let error = call(7.0).unwrap_err().to_string();
                assert!(
                    error.contains("index 7 ") && error.contains("out of range"),
                    "{name}, {device}: {error}"
                );
                call(0.0).unwrap();
            }
        }
    }
}

#[test]
fn other_dtypes_are_no_indices() {
    let _turn = turn();
    for device in devices() {
        let x = tensor(&[0.5; 15], [5, 3], DType::F32, &device);
        for dtype in [DType::U8, DType::Bool, DType::F32] {
            for (name, run) in OPERATIONS {
                match run(&x, &ids(dtype, &device)) {
                    Err(Error::DTypeMismatch { lhs, .. }) => assert_eq!(lhs, dtype, "{name}"),
                    other => panic!("{name}, {dtype}: {other:?}"),
                }
            }
        }
    }
}

/// GPUs: the one that is here, and simulated ones that no other test works on.
fn gpus() -> Vec<Device> {
    let simulated = [Profile::Discrete, Profile::Unified].map(|profile| Simulator::new(profile).device());
    simulated.into_iter().chain(devices().filter(|d| d.kind() == DeviceKind::Cuda)).collect()
}

#[test]
fn a_later_call_that_does_not_wait_names_the_operation_that_failed_on_a_gpu() {
    let _turn = turn();
    for device in gpus() {
        let x = tensor(&[1.0, 2.0, 3.0], [3], DType::F32, &device);
        let bad = tensor(&[0.0, 7.0], [2], DType::I64, &device);
        let mut step = Step::new(&device, |x| Ok(vec![x[0].neg()?]));
        step.call(&[x.clone()]).unwrap();
        let calls: [(&str, &mut dyn FnMut() -> Result<()>); 3] = [
            ("an operation", &mut || x.neg().map(drop)),
            ("a copy from the host", &mut || x.write_from(&[1.0f32, 2.0, 3.0])),
            ("a replay", &mut || step.call(&[x.clone()]).map(drop)),
        ];
        for (name, call) in calls {
            // Where each launch is waited for, the operation itself fails.
            let Ok(picked) = x.index_select(0, &bad) else { continue };
            // The GPU gets to it some time.
            let began = std::time::Instant::now();
            let error = loop {
                match call() {
                    Err(error) => break error,
                    Ok(()) => assert!(began.elapsed().as_secs() < 60, "{name} on {device} tells nothing"),
                }
            };
            assert!(matches!(error, Error::InvalidArgument { op: "index_select", .. }), "{error}");
            let text = error.to_string();
            assert!(text.contains("index 7 ") && text.contains("Device::synchronize"), "{text}");
            // It is told once, and nothing but what was picked is damaged.
            call().unwrap();
            device.synchronize().unwrap();
            assert!(values(&picked)[1].is_nan());
            assert_eq!((values(&picked)[0], values(&x)), (1.0, vec![1.0, 2.0, 3.0]), "{name} on {device}");
        }
        step.finish().unwrap();
    }
}

#[test]
fn what_an_index_out_of_range_damages_in_a_recorded_step_is_right_again_once_it_is_written_anew() {
    let _turn = turn();
    for device in gpus() {
        let ids = |ids: [f64; 2]| tensor(&ids, [2], DType::I64, &device);
        let table = tensor(&[1.0, 2.0, 3.0], [3], DType::F32, &device);
        let w = tensor(&[1.0, 1.0], [2], DType::F32, &device);
        let mut step = Step::new(&device, |x| {
            let loss = table.index_select(0, &x[0])?.mul(&w)?.sum(())?;
            w.add_assign(&loss)?;
            Ok(vec![loss])
        });
        step.call(&[ids([0.0, 2.0])]).unwrap();
        let called = step.call(&[ids([1.0, 9.0])]).map(drop);
        let ran = called.is_ok();
        let error = called.and_then(|()| device.synchronize()).unwrap_err();
        assert!(matches!(error, Error::InvalidArgument { op: "index_select", .. }), "{error}");
        // Not what stood in the step's memory before. Where each launch is waited for, the update does not run.
        let damaged = values(&w).iter().all(|w| w.is_nan());
        assert_eq!(damaged, ran, "{device}: {:?}", values(&w));
        assert_eq!(values(&table), [1.0, 2.0, 3.0]);
        w.fill(1.0).unwrap();
        assert_eq!(step.call(&[ids([0.0, 2.0])]).unwrap().to_scalar::<f32>(0).unwrap(), 4.0);
        assert_eq!(values(&w), [5.0, 5.0]);
        step.finish().unwrap();
    }
}

#[test]
fn an_index_out_of_range_leaves_everything_as_it_is_on_the_cpu() {
    let device = Device::cpu();
    let x = tensor(&[1.0, 2.0, 3.0], [3], DType::F32, &device);
    let bad = tensor(&[0.0, 7.0], [2], DType::I64, &device);
    let dst = Tensor::full(2, 5.0, DType::F32, &device).unwrap();
    assert!(x.index_select_into(0, &bad, &dst).is_err());
    assert!(x.scatter_add_into(0, &bad, &dst, &x).is_err());
    assert!(x.index_add_into(0, &bad, &dst, &x).is_err());
    assert_eq!((values(&dst), values(&x)), (vec![5.0; 2], vec![1.0, 2.0, 3.0]));
}
