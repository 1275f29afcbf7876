//! Indices in i32 and i64 mean the same, in every operation that takes them.

mod common;

use common::{devices, tensor, turn, values};
use refrain::{DType, Device, Error, Result, Tensor};

type Indexed = fn(&Tensor, &Tensor) -> Result<Tensor>;

/// Each operation over a table of 5 x 3 and the ids of a 2 x 3 matrix.
const OPERATIONS: [(&str, Indexed); 9] = [
    ("gather", |x, ids| x.gather(0, ids)),
    ("index_select", |x, ids| x.index_select(0, &ids.flatten(0, -1)?)),
    ("index_select, last axis", |x, ids| x.transpose(0, 1)?.index_select(-1, &ids.select(0, 1)?)),
    ("embedding", |x, ids| x.embedding(ids)),
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
