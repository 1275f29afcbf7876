//! Picks parameters, for [`Parameters::set_group`](crate::Parameters::set_group).

use refrain::Tensor;

use crate::error::{Error, Result};
use crate::layer_tree::Layers;
use crate::parameters::{ALIKE, Parameters};

impl Parameters {
    /// Picks parameters by their full names. In the pattern, `*` stands for any characters, also none and also dots.
    ///
    /// ```
    /// # use refrain::{DType, Device, Generator};
    /// # use refrain_nn::{Linear, ParameterBuilder};
    /// # let device = Device::cpu();
    /// # let builder = ParameterBuilder::new(&device, DType::F32);
    /// # for layer in ["blocks.0.attn", "blocks.1.attn", "head"] {
    /// #     Linear::new(&builder.scope(layer), 3, 3)?;
    /// # }
    /// # let mut parameters = builder.build(&Generator::new(&device, 0)?)?;
    /// parameters.set_group(parameters.named("blocks.*.weight")?, |group| group.rate_factor = 0.1)?;
    /// assert_eq!(parameters.set_group(parameters.named("head.*")?, |group| group.trainable = false)?, 2);
    ///
    /// let error = parameters.named("block.*").err().unwrap();
    /// assert!(error.to_string().ends_with("did you mean `blocks.0.attn.weight`?"));
    /// # Ok::<(), refrain_nn::Error>(())
    /// ```
    ///
    /// # Errors
    /// If no parameter has such a name. The error has the name that is most like the pattern.
    pub fn named(&self, pattern: &str) -> Result<impl Fn(&str, &Tensor) -> bool + use<>> {
        let written = pattern.chars().filter(|&c| c != '*').count();
        let nearest =
            self.names().map(|name| (changes(pattern, name), name)).min_by_key(|(changes, _)| *changes);
        let advice = match nearest {
            Some((0, _)) => {
                let pattern = pattern.to_owned();
                return Ok(move |name: &str, _: &Tensor| changes(&pattern, name) == 0);
            }
            Some((changes, name)) if changes as f64 <= (1.0 - ALIKE) * written as f64 => {
                format!("did you mean `{name}`?")
            }
            _ => "see `names()`".to_owned(),
        };
        Err(Error::parameter(pattern, format!("no parameter has such a name; {advice}")))
    }
}

/// How many characters must be put in, left out or replaced for the name to fit the pattern.
fn changes(pattern: &str, name: &str) -> usize {
    let name: Vec<char> = name.chars().collect();
    // For each beginning of the name: the changes by which it fits the pattern as far as the loop has come.
    let mut fits: Vec<usize> = (0..=name.len()).collect();
    for c in pattern.chars() {
        let before = fits.clone();
        fits[0] += usize::from(c != '*');
        for (i, &n) in name.iter().enumerate() {
            fits[i + 1] = match c {
                '*' => before[i + 1].min(fits[i]),
                c => (before[i] + usize::from(c != n)).min(before[i + 1] + 1).min(fits[i] + 1),
            };
        }
    }
    fits[name.len()]
}

/// Picks the parameters of a layer or of any other part of a model. Call it after `build`.
///
/// ```
/// use refrain::{Activation, DType, Device, Generator};
/// use refrain_nn::{Layers, Linear, Mlp, ParameterBuilder, part_of};
///
/// #[derive(Layers)]
/// struct Model {
///     encoder: Mlp,
///     head: Linear,
/// }
///
/// let device = Device::cpu();
/// let builder = ParameterBuilder::new(&device, DType::F32);
/// let encoder = Mlp::new(&builder.scope("encoder"), &[4, 8, 8], Activation::Relu)?;
/// let model = Model { encoder, head: Linear::new(&builder.scope("head"), 8, 2)? };
/// let mut parameters = builder.build(&Generator::new(&device, 0)?)?;
/// // Only the head is trained.
/// assert_eq!(parameters.set_group(part_of(&model.encoder), |group| group.trainable = false)?, 4);
/// assert!(!parameters.group("encoder.2.weight")?.trainable);
/// assert!(parameters.group("head.weight")?.trainable);
/// # Ok::<(), refrain_nn::Error>(())
/// ```
pub fn part_of(part: &dyn Layers) -> impl Fn(&str, &Tensor) -> bool + use<> {
    let parameters = part.layers().parameters();
    // Another model may use the same names, but not for the same memory.
    move |name, tensor| {
        parameters.iter().any(|p| p.name() == name && p.tensor().is_ok_and(|own| own.shares_storage(tensor)))
    }
}

/// Weights of linear layers and tables of embeddings have at least this many dimensions; norms and biases have fewer.
pub(crate) const WEIGHT_RANK: usize = 2;

/// Picks the parameters that weight decay is usually not meant for: vectors and scalars, which are the biases and the
/// parameters of norms. Their decay factor is 0 from the beginning.
///
/// ```
/// # use refrain::{DType, Device, Generator};
/// # use refrain_nn::{Linear, ParameterBuilder, norms_and_biases};
/// # let device = Device::cpu();
/// # let builder = ParameterBuilder::new(&device, DType::F32);
/// # Linear::new(&builder, 3, 3)?;
/// # let mut parameters = builder.build(&Generator::new(&device, 0)?)?;
/// assert_eq!(parameters.group("bias")?.decay_factor, 0.0);
/// assert_eq!(parameters.group("weight")?.decay_factor, 1.0);
/// // As PyTorch's optimisers do:
/// parameters.set_group(norms_and_biases, |group| group.decay_factor = 1.0)?;
/// assert_eq!(parameters.group("bias")?.decay_factor, 1.0);
/// # Ok::<(), refrain_nn::Error>(())
/// ```
pub fn norms_and_biases(_: &str, tensor: &Tensor) -> bool {
    tensor.rank() < WEIGHT_RANK
}

#[cfg(test)]
mod tests {
    use super::changes;

    #[test]
    fn a_star_stands_for_any_characters() {
        for (pattern, name) in [
            ("a.b", "a.b"),
            ("*", "a.b"),
            ("*", ""),
            ("a.*", "a.b.c"),
            ("*.bias", "head.bias"),
            ("a*b*c", "abc"),
            ("a*b*c", "axxbyybzzc"),
            ("*ab*", "aab"),
            ("*aa", "aaa"),
            ("a**b", "ab"),
        ] {
            assert_eq!(changes(pattern, name), 0, "{pattern} {name}");
        }
        for (pattern, name, expected) in [
            ("a.b", "a.bc", 1),
            ("a.b", "xa.b", 1),
            ("*.bias", "bias", 1),
            ("a*a", "a", 1),
            ("a*b*c", "acb", 1),
            ("", "ab", 2),
            ("a*", "b", 1),
            ("block.*", "blocks.0.weight", 1),
            ("*.weights", "head.weight", 1),
        ] {
            assert_eq!(changes(pattern, name), expected, "{pattern} {name}");
        }
    }
}
