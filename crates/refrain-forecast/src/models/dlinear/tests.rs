use super::*;
use crate::models::testing::{check_gradients, device};
use refrain::gradcheck;

const CONFIG: DLinearConfig =
    DLinearConfig { channels: 3, context: 8, horizon: 4, moving_average: 5, individual: false };

#[test]
fn the_trend_is_the_moving_average_of_the_context_that_goes_on_at_both_ends() {
    let x = Generator::new(&device(), 1).unwrap().normal([2, 3, 8], DType::F64).unwrap();
    let values = x.to_vec::<f64>().unwrap();
    for moving_average in [1, 5, 11] {
        let config = DLinearConfig { moving_average, ..CONFIG };
        let trend = config.trend(&x).unwrap();
        assert_eq!(trend.dims(), [2, 3, 8]);
        let side = moving_average as isize / 2;
        for (row, (past, got)) in values.chunks(8).zip(trend.to_vec::<f64>().unwrap().chunks(8)).enumerate() {
            for at in 0..8 {
                let near = (-side..=side).map(|by| past[(at as isize + by).clamp(0, 7) as usize]);
                let expected = near.sum::<f64>() / moving_average as f64;
                assert!((got[at] - expected).abs() < 1e-12, "{moving_average}, row {row}, {at}: {}", got[at]);
            }
        }
    }
}

#[test]
fn gradients_are_those_of_finite_differences() {
    for individual in [false, true] {
        let config = DLinearConfig { individual, ..CONFIG };
        let model = DLinear::new(config, DType::F64, &device(), 7).unwrap();
        let x = Generator::new(&device(), 1).unwrap().normal([2, 3, 8], DType::F64).unwrap();
        check_gradients(model.parameters(), 1e-6, || {
            model.forward(&x, Mode::Eval).unwrap().square().unwrap().sum(()).unwrap()
        });
        x.set_requires_grad(true).unwrap();
        gradcheck(|x| model.forward(&x[0], Mode::Eval).unwrap().square()?.sum(()), &[x], 1e-6).unwrap();
    }
}

#[test]
fn a_moving_average_without_a_middle_is_refused() {
    let message = DLinearConfig { moving_average: 24, ..CONFIG }.validate().unwrap_err().to_string();
    assert!(message.contains("moving average of 24 rows") && message.contains("25"), "{message}");
    assert!(DLinearConfig { moving_average: 0, ..CONFIG }.validate().is_err());
}
