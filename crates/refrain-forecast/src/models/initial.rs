//! A model that begins with the weights of another one.

use super::checks::refuse;
use crate::Result;
use refrain::{Tensor, no_grad};
use refrain_nn::Parameters;
use std::collections::BTreeMap;

/// The part of a model that depends on the horizon and on the loss.
pub(crate) const HEAD: &str = "head.";

/// Copies tensors into the parameters and running statistics of the same names. Those of the head keep their values if there
/// is no tensor for them, or one of another shape; their names are returned. Dtype and device of a tensor may be others.
///
/// # Errors
/// [`Error::Model`](crate::Error::Model) if a tensor is missing or has another shape, or if there is one that the model does
/// not have. Then nothing is changed.
pub fn initialise(parameters: &Parameters, tensors: &[(String, Tensor)]) -> Result<Vec<String>> {
    const FIX: &str = "use the settings of the model that the weights are from";
    let mut left: BTreeMap<&str, &Tensor> =
        tensors.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
    let (mut copies, mut kept) = (Vec::new(), Vec::new());
    for (name, to) in parameters.iter().chain(parameters.buffers()) {
        match left.remove(name) {
            Some(from) if from.dims() == to.dims() => copies.push((to, from)),
            _ if name.starts_with(HEAD) => kept.push(name.to_owned()),
            Some(from) => {
                let problem =
                    format!("`{name}` has shape {}, and {} in the initial weights", to.shape(), from.shape());
                return refuse(problem, FIX);
            }
            None => return refuse(format!("the initial weights lack `{name}`"), FIX),
        }
    }
    if let Some(name) = left.keys().find(|name| !name.starts_with(HEAD)) {
        return refuse(format!("the initial weights have `{name}`, which the model lacks"), FIX);
    }
    for (to, from) in copies {
        let values = from.detach().to_dtype(refrain::DType::F64)?.to_vec::<f64>()?;
        let from = Tensor::from_slice(&values, from.shape(), to.device())?.to_dtype(to.dtype())?;
        no_grad(|| to.detach().copy_from(&from))?;
    }
    Ok(kept)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::testing::device;
    use refrain::{DType, Generator};
    use refrain_nn::{Linear, ParameterBuilder};

    /// A model of a linear layer and a head.
    fn model(inputs: usize, horizon: usize, seed: u64) -> Parameters {
        let builder = ParameterBuilder::new(&device(), DType::F32);
        Linear::new(&builder.scope("body"), inputs, 4).unwrap();
        Linear::new(&builder.scope("head"), 4, horizon).unwrap();
        builder.build(&Generator::new(&device(), seed).unwrap()).unwrap()
    }

    fn tensors(of: &Parameters) -> Vec<(String, Tensor)> {
        of.iter().map(|(name, tensor)| (name.to_owned(), tensor.detach())).collect()
    }

    fn values(of: &Parameters, name: &str) -> Vec<f32> {
        of.get(name).unwrap().to_vec().unwrap()
    }

    #[test]
    fn weights_are_copied_and_a_head_for_another_horizon_is_left() {
        let (first, same, longer) = (model(3, 2, 1), model(3, 2, 2), model(3, 5, 2));
        assert_eq!(initialise(&same, &tensors(&first)).unwrap(), Vec::<String>::new());
        let head = values(&longer, "head.weight");
        assert_eq!(initialise(&longer, &tensors(&first)).unwrap(), ["head.weight", "head.bias"]);
        for (name, _) in first.iter() {
            assert_eq!(values(&same, name), values(&first, name), "{name}");
        }
        assert_eq!(values(&longer, "body.weight"), values(&first, "body.weight"));
        assert_eq!(values(&longer, "head.weight"), head);
    }

    #[test]
    fn weights_of_another_model_are_refused_and_change_nothing() {
        let (first, other) = (model(3, 2, 1), model(6, 2, 2));
        let before = values(&other, "body.bias");
        let refused = |tensors: &[(String, Tensor)]| initialise(&other, tensors).unwrap_err().to_string();
        let message = refused(&tensors(&first));
        assert!(message.contains("`body.weight` has shape [4, 6], and [4, 3]"), "{message}");
        let message = refused(&tensors(&first)[1..]);
        assert!(message.contains("lack `body.weight`"), "{message}");
        let extra = ("norm.weight".to_owned(), Tensor::zeros(4, DType::F32, &device()).unwrap());
        let message = refused(&[tensors(&other), vec![extra]].concat());
        assert!(message.contains("have `norm.weight`, which the model lacks"), "{message}");
        assert_eq!(values(&other, "body.bias"), before);
    }
}
