use super::*;
use crate::models::testing::{check_gradients, device};

const CONFIG: NLinearConfig = NLinearConfig { channels: 3, context: 8, horizon: 4, individual: false };

fn build(individual: bool) -> NLinear {
    NLinear::new(NLinearConfig { individual, ..CONFIG }, DType::F64, &device(), 7).unwrap()
}

/// `[2, 3, 8]`
fn contexts() -> Tensor {
    Generator::new(&device(), 1).unwrap().normal([2, 3, 8], DType::F64).unwrap()
}

fn forecast(model: &NLinear, x: &Tensor) -> Vec<f64> {
    model.forward(x, Mode::Eval).unwrap().to_vec().unwrap()
}

#[test]
fn a_forecast_is_the_last_value_and_a_linear_map_of_the_way_to_it() {
    let x = contexts();
    let values = x.to_vec::<f64>().unwrap();
    for individual in [false, true] {
        let model = build(individual);
        let read = |name: &str| model.parameters().get(name).unwrap().detach().to_vec::<f64>().unwrap();
        let (weight, bias) = (read("linear.weight"), read("linear.bias"));
        let mut expected = Vec::new();
        for (row, past) in values.chunks_exact(8).enumerate() {
            let (channel, last) = (row % 3, past[7]);
            for step in 0..4 {
                // Shared weights are [out, in] as PyTorch's, those of channels [C, in, out].
                let of = |at: usize| match individual {
                    false => weight[step * 8 + at],
                    true => weight[(channel * 8 + at) * 4 + step],
                };
                let bias = if individual { bias[channel * 4 + step] } else { bias[step] };
                expected.push((0..8).map(|at| of(at) * (past[at] - last)).sum::<f64>() + bias + last);
            }
        }
        let got = forecast(&model, &x);
        let apart = got.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(got.len() == expected.len() && apart < 1e-12, "{apart:e} apart, individual: {individual}");
    }
}

#[test]
fn the_level_of_a_series_moves_its_forecast_and_nothing_else() {
    let (model, x) = (build(true), contexts());
    let moved = forecast(&model, &x.add_scalar(100.0).unwrap());
    let apart =
        forecast(&model, &x).iter().zip(&moved).map(|(a, b)| (b - a - 100.0).abs()).fold(0.0, f64::max);
    assert!(apart < 1e-10, "{apart:e}");
}

#[test]
fn gradients_are_those_of_finite_differences() {
    for individual in [false, true] {
        let (model, x) = (build(individual), contexts());
        check_gradients(model.parameters(), 1e-6, || {
            model.forward(&x, Mode::Eval).unwrap().square().unwrap().sum(()).unwrap()
        });
    }
}

#[test]
fn what_is_no_window_of_the_model_is_refused() {
    let x = Tensor::zeros([2, 3, 9], DType::F64, &device()).unwrap();
    let message = build(false).forward(&x, Mode::Eval).err().unwrap().to_string();
    assert!(message.contains("[2, 3, 9]") && message.contains("a context of 8"), "{message}");
    let none = NLinearConfig { horizon: 0, ..CONFIG };
    assert!(none.validate().unwrap_err().to_string().contains("horizon is 0"));
}
