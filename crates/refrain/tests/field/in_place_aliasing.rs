//! **Seen:** an operation whose destination was also a source gave the destination a new buffer first and read from that
//! one, so that it computed with zeros.
//!
//! **Found here:** an operation in place that gives other bits than into a new tensor, or moves the tensor; a
//! destination that overlaps a source in another way, where no order of reading and writing is right, and that is not
//! refused.

use refrain::{Error, Result, Tensor};

use crate::common::{FLOATS, counting, devices, tensor, turn, values};

#[test]
fn elementwise_operations_in_place_read_before_they_write() {
    let _turn = turn();
    type Into = fn(&Tensor, &Tensor) -> Result<()>;
    let operations: [(&str, Into); 10] = [
        ("neg", |x, y| x.neg_into(y)),
        ("exp", |x, y| x.exp_into(y)),
        ("gelu", |x, y| x.gelu_into(y)),
        ("clamp", |x, y| x.clamp_into(-0.5, 0.5, y)),
        ("add", |x, y| x.add_into(x, y)),
        ("mul", |x, y| x.mul_into(x, y)),
        ("div", |x, y| x.div_into(&x.add_scalar(2.0)?, y)),
        ("reversed div", |x, y| x.add_scalar(2.0)?.div_into(x, y)),
        ("scalar pow", |x, y| x.pow_scalar_into(2.0, y)),
        ("scalar sub", |x, y| x.scalar_sub_into(2.0, y)),
    ];
    for device in devices() {
        for dtype in FLOATS {
            for (name, op) in operations {
                for n in [5, 40_000] {
                    let data: Vec<f64> = (0..n).map(|i| (i % 17) as f64 / 8.0 - 1.0).collect();
                    let fresh = tensor(&data, [n], dtype, &device);
                    let expected = fresh.zeros_like().unwrap();
                    op(&fresh, &expected).unwrap();
                    let x = tensor(&data, [n], dtype, &device);
                    let id = x.storage_id();
                    op(&x, &x).unwrap();
                    let same = values(&x)
                        .iter()
                        .zip(values(&expected))
                        .all(|(a, b)| a.to_bits() == b.to_bits() || a.is_nan());
                    assert!(same, "{name} in place in {dtype}");
                    assert_eq!(x.storage_id(), id);
                    // In a column of a matrix, too.
                    let m = Tensor::zeros([n, 3], dtype, &device).unwrap();
                    let column = m.select(1, 1).unwrap();
                    column.copy_from(&tensor(&data, [n], dtype, &device)).unwrap();
                    op(&column, &column).unwrap();
                    assert_eq!(values(&column).len(), n);
                    let same = values(&column)
                        .iter()
                        .zip(values(&expected))
                        .all(|(a, b)| a.to_bits() == b.to_bits() || a.is_nan());
                    assert!(same, "{name} in place in a column in {dtype}");
                    assert!(values(&m.select(1, 0).unwrap()).iter().all(|&v| v == 0.0));
                    assert!(values(&m.select(1, 2).unwrap()).iter().all(|&v| v == 0.0));
                }
            }
        }
    }
}

#[test]
fn a_destination_that_overlaps_an_operand_is_refused_where_the_result_is_not_well_defined() {
    let _turn = turn();
    for device in devices() {
        let x = counting(16, &device).reshape([4, 4]).unwrap();
        let aliased = |r: Result<()>, op: &str| match r {
            Err(Error::Aliased { op: name, .. }) => assert_eq!(name, op),
            other => panic!("{op}: {other:?}"),
        };
        let t = x.transpose(0, 1).unwrap();
        aliased(t.exp_into(&x), "exp");
        aliased(t.add_into(&x, &x), "add");
        aliased(x.copy_from(&t), "copy_from");
        aliased(x.add_assign(&t), "add_assign");
        aliased(x.add_assign(&x.select(0, 1).unwrap()), "add_assign");
        aliased(x.mul_assign(&x.select(0, 1).unwrap()), "mul");
        aliased(x.matmul_into(&x, &x), "matmul");
        let flat = x.flatten(0, 1).unwrap();
        aliased(flat.narrow(0, 0, 8).unwrap().exp_into(&flat.narrow(0, 4, 8).unwrap()), "exp");
        aliased(x.sum_into(0, &x.select(0, 0).unwrap()), "sum");
        assert_eq!(values(&x), (0..16).map(f64::from).collect::<Vec<_>>(), "a refused operation wrote");
        // Neighbours that share no element are fine, interleaved ones too.
        let (left, right) = (x.narrow(1, 0, 2).unwrap(), x.narrow(1, 2, 2).unwrap());
        left.add_into(&left, &right).unwrap();
        assert_eq!(values(&right), [0.0, 2.0, 8.0, 10.0, 16.0, 18.0, 24.0, 26.0]);
        right.copy_from(&left).unwrap();
        assert_eq!(values(&right), values(&left));
        x.select(0, 1).unwrap().add_assign(&x.select(0, 0).unwrap()).unwrap();
        assert_eq!(values(&x.select(0, 1).unwrap()), [4.0, 6.0, 4.0, 6.0]);
        x.add_assign(&x).unwrap();
        assert_eq!(values(&x.select(0, 0).unwrap()), [0.0, 2.0, 0.0, 2.0]);
    }
}
