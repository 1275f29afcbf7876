//! What the tests of the models share.

use refrain::Tensor;
use refrain_nn::Parameters;
pub(crate) use refrain_test::device;

/// Compares the gradients of a scalar f64 `loss` with central differences along the first, the middle and the last value of
/// every parameter.
#[track_caller]
pub(crate) fn check_gradients(parameters: &Parameters, tolerance: f64, loss: impl Fn() -> Tensor) {
    const STEP: f64 = 1e-5;
    loss().backward().unwrap();
    for (name, parameter) in parameters.iter() {
        let gradient = parameter.grad().unwrap().to_vec::<f64>().unwrap();
        let values = parameter.detach().to_vec::<f64>().unwrap();
        for at in [0, values.len() / 2, values.len() - 1] {
            let moved = |by: f64| {
                let mut values = values.clone();
                values[at] += by;
                parameter.detach().write_from(&values).unwrap();
                loss().to_scalar::<f64>().unwrap()
            };
            let slope = (moved(STEP) - moved(-STEP)) / (2.0 * STEP);
            parameter.detach().write_from(&values).unwrap();
            let found = gradient[at];
            assert!((found - slope).abs() < tolerance, "{name}[{at}]: {found} for {slope}");
        }
    }
}
