use crate::faults::{error_of, own_devices};
use crate::testing::devices;
use refrain::{DType, Device, DeviceKind, Error, Tensor};

fn ids(values: &[i64], shape: &[usize], device: &Device) -> Tensor {
    Tensor::from_slice(values, shape, device).unwrap()
}

#[test]
fn every_dtype_and_shape_of_ids_is_taken() {
    for device in devices() {
        let x = ids(&[0, 2, 1, 1], &[2, 2], &device);
        let expected = [1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0];
        for dtype in DType::ALL {
            let y = x.one_hot(3, dtype).unwrap();
            assert_eq!((y.dims(), y.dtype()), (&[2, 2, 3][..], dtype));
            assert_eq!(y.to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap(), expected, "{dtype}");
        }
        assert_eq!(ids(&[1], &[], &device).one_hot(2, DType::I64).unwrap().to_vec::<i64>().unwrap(), [0, 1]);
        assert_eq!(ids(&[], &[0], &device).one_hot(4, DType::F32).unwrap().dims(), [0, 4]);
        assert_eq!(ids(&[], &[0], &device).one_hot(0, DType::F32).unwrap().dims(), [0, 0]);
        let t = x.transpose(0, 1).unwrap().one_hot(3, DType::U8).unwrap().to_vec::<u8>().unwrap();
        assert_eq!(t, [1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 1, 0]);
    }
}

#[test]
fn an_id_beyond_the_classes_is_named() {
    for own in own_devices() {
        let on = |values: &[i64], shape: &[usize]| ids(values, shape, &own);
        for bad in [3, -1] {
            let dst = Tensor::full([2, 2, 3], 5.0, DType::F32, &own).unwrap();
            let text = error_of(&own, on(&[0, 1, bad, 2], &[2, 2]).one_hot_into(3, &dst)).to_string();
            assert!(
                text.starts_with(&format!("one_hot: index {bad} ")) && text.contains("3 classes"),
                "{text}"
            );
            assert_eq!(text.contains("at [1, 0]"), own.kind() != DeviceKind::Cuda, "{text}");
            let after = dst.to_vec::<f32>().unwrap();
            match own.kind() {
                DeviceKind::Cpu => assert_eq!(after, [5.0; 12]),
                _ => assert_eq!(after, [1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0]),
            }
        }
        assert!(on(&[0], &[1]).one_hot(0, DType::F32).is_err());
        let floats = Tensor::zeros([2], DType::F32, &own).unwrap();
        assert!(matches!(floats.one_hot(3, DType::F32), Err(Error::DTypeMismatch { op: "one_hot", .. })));
        assert!(on(&[0, 0], &[2]).one_hot(usize::MAX, DType::F32).is_err());
    }
}
