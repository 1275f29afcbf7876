use crate::{DType, Device, Tensor, gradcheck};

#[test]
fn sums_over_any_axes_are_right_and_have_gradients() {
    let device = Device::cpu();
    let x = Tensor::arange(0.0, 24.0, 1.0, DType::F64, &device).unwrap().reshape([2, 3, 4]).unwrap();
    assert_eq!(x.sum(()).unwrap().to_scalar::<f64>().unwrap(), 276.0);
    assert_eq!(x.sum([0, 2]).unwrap().to_vec::<f64>().unwrap(), [60.0, 92.0, 124.0]);
    assert_eq!(x.sum_keepdim(1).unwrap().dims(), [2, 1, 4]);
    assert_eq!(x.mean([1]).unwrap().to_vec::<f64>().unwrap(), [4.0, 5.0, 6.0, 7.0, 16.0, 17.0, 18.0, 19.0]);
    let leaf = x.detach();
    leaf.set_requires_grad(true).unwrap();
    for axes in [&[0][..], &[1], &[2], &[0, 1], &[1, 2], &[0, 2], &[0, 1, 2], &[]] {
        gradcheck(|t| t[0].square()?.mean(axes), std::slice::from_ref(&leaf), 1e-6).unwrap();
        gradcheck(|t| t[0].transpose(0, 2)?.square()?.sum(axes), std::slice::from_ref(&leaf), 1e-6).unwrap();
    }
}

#[test]
fn a_long_sum_does_not_lose_small_terms() {
    let device = Device::cpu();
    let x = Tensor::full([1 << 20], 0.1, DType::F32, &device).unwrap();
    let s = x.sum(()).unwrap().to_scalar::<f32>().unwrap();
    let exact = 0.1f32 as f64 * (1 << 20) as f64;
    assert!((s as f64 - exact).abs() < exact * f32::EPSILON as f64 * 8.0, "{s} {exact}");
    let columns = Tensor::ones([70_000, 3], DType::F32, &device).unwrap();
    assert_eq!(columns.sum(0).unwrap().to_vec::<f32>().unwrap(), [70_000.0; 3]);
    let ints = Tensor::ones([300], DType::U8, &device).unwrap();
    assert_eq!(ints.sum(()).unwrap().to_scalar::<i64>().unwrap(), 300);
}

#[test]
fn the_sum_of_nothing_is_zero() {
    let device = Device::cpu();
    let x = Tensor::zeros([2, 0, 3], DType::F32, &device).unwrap();
    assert_eq!(x.sum(1).unwrap().to_vec::<f32>().unwrap(), [0.0; 6]);
    assert_eq!(x.sum(()).unwrap().to_scalar::<f32>().unwrap(), 0.0);
    assert!(x.mean(()).unwrap().to_scalar::<f32>().unwrap().is_nan());
    assert_eq!(x.sum(0).unwrap().dims(), [0, 3]);
}
