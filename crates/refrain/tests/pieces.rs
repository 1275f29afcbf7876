//! Tensors that are written from a source that gives its bytes in pieces, such as a large file.

mod common;

use common::{devices, turn};
use refrain::{DType, Error, Tensor};

/// The byte at a position of the source.
fn byte(at: usize) -> u8 {
    (at.wrapping_mul(0x9E37_79B9) >> 13) as u8
}

fn fill(at: usize, piece: &mut [u8]) -> Result<(), Error> {
    piece.iter_mut().enumerate().for_each(|(i, to)| *to = byte(at + i));
    Ok(())
}

/// A part of a tensor's bytes.
fn bytes(x: &Tensor, first: usize, n: usize) -> Vec<u8> {
    let part = x.view(x.numel()).unwrap().narrow(0, first / 8, n / 8).unwrap();
    part.to_vec::<i64>().unwrap().iter().flat_map(|v| v.to_le_bytes()).collect()
}

#[test]
fn many_pieces_reach_their_places() {
    let _turn = turn();
    for device in devices() {
        // Nothing; less than a piece; several threads' worth, with a rest.
        for n in [0, 24, (35 << 20) + 8] {
            let around = Tensor::ones(n / 8 + 2, DType::I64, &device).unwrap();
            let x = around.narrow(0, 1, n / 8).unwrap();
            x.write_pieces(fill).unwrap();
            let expected: Vec<u8> = (0..n).map(byte).collect();
            assert!(bytes(&x, 0, n) == expected, "{n} bytes on {device}");
            // Its neighbours in memory are as they were.
            let ends = [0, n / 8 + 1].map(|i| around.narrow(0, i, 1).unwrap().to_scalar::<i64>().unwrap());
            assert_eq!(ends, [1, 1]);
        }
    }
}

#[test]
fn views_and_truth_values_are_written_as_by_write_from() {
    let _turn = turn();
    for device in devices() {
        let x = Tensor::zeros([2, 3], DType::U8, &device).unwrap();
        x.transpose(0, 1)
            .unwrap()
            .write_pieces(|at, piece| {
                piece.iter_mut().enumerate().for_each(|(i, to)| *to = (at + i) as u8);
                Ok::<(), Error>(())
            })
            .unwrap();
        assert_eq!(x.to_vec::<u8>().unwrap(), [0, 2, 4, 1, 3, 5]);
        let flags = Tensor::zeros(3, DType::Bool, &device).unwrap();
        let raw = |_: usize, piece: &mut [u8]| {
            piece.copy_from_slice(&[0, 1, 200]);
            Ok::<(), Error>(())
        };
        flags.write_pieces(raw).unwrap();
        assert_eq!(flags.to_vec::<bool>().unwrap(), [false, true, true]);
        assert_eq!(flags.to_dtype(DType::I64).unwrap().sum(()).unwrap().to_scalar::<i64>().unwrap(), 2);
    }
}

#[test]
fn the_error_of_the_source_ends_the_work_and_is_returned() {
    #[derive(Debug)]
    enum Fault {
        Tensor(#[allow(dead_code)] Error),
        OfSource(usize),
    }
    impl From<Error> for Fault {
        fn from(e: Error) -> Fault {
            Fault::Tensor(e)
        }
    }
    let _turn = turn();
    for device in devices() {
        let x = Tensor::zeros(40 << 20, DType::U8, &device).unwrap();
        let at = 4 << 20;
        let done = x.write_pieces(|first, piece| {
            piece.fill(7);
            if first == at { Err(Fault::OfSource(first)) } else { Ok(()) }
        });
        assert!(matches!(done, Err(Fault::OfSource(first)) if first == at), "{done:?} on {device}");
        // The next copy is not disturbed.
        x.write_pieces(fill).unwrap();
        assert_eq!(x.narrow(0, 12, 1).unwrap().to_vec::<u8>().unwrap(), [byte(12)]);
        // A tensor that repeats memory has no place for all elements.
        let wide = Tensor::zeros(1, DType::U8, &device).unwrap().broadcast_to(3).unwrap();
        assert!(matches!(wide.write_pieces(|_, _| Ok::<(), Fault>(())), Err(Fault::Tensor(_))));
    }
}
