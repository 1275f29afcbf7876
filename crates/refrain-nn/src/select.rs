//! Picks parameters, for [`Parameters::set_group`](crate::Parameters::set_group).

use refrain::Tensor;

use crate::layer_tree::Layers;

/// Picks parameters by their full names. In the pattern, `*` stands for any characters, also none and also dots.
///
/// ```
/// # use refrain::{DType, Device, Generator};
/// # use refrain_nn::{Linear, ParameterBuilder, named};
/// # let device = Device::cpu();
/// # let builder = ParameterBuilder::new(&device, DType::F32);
/// # for layer in ["blocks.0.attn", "blocks.1.attn", "head"] {
/// #     Linear::new(&builder.scope(layer), 3, 3)?;
/// # }
/// # let mut parameters = builder.build(&Generator::new(&device, 0)?)?;
/// assert_eq!(parameters.set_group(named("blocks.*.weight"), |group| group.rate_factor = 0.1)?, 2);
/// assert_eq!(parameters.set_group(named("head.*"), |group| group.trainable = false)?, 2);
/// # Ok::<(), refrain_nn::Error>(())
/// ```
pub fn named(pattern: &str) -> impl Fn(&str, &Tensor) -> bool {
    let parts: Vec<String> = pattern.split('*').map(String::from).collect();
    move |name, _| matches(&parts, name)
}

/// Whether a name is the parts with anything between them.
fn matches(parts: &[String], name: &str) -> bool {
    let (Some((first, rest)), Some(last)) = (parts.split_first(), parts.last()) else {
        return name.is_empty();
    };
    let Some(mut name) = name.strip_prefix(first.as_str()) else { return false };
    let Some((_, between)) = rest.split_last() else { return name.is_empty() };
    for part in between {
        // The earliest place leaves the most for the parts after it.
        let Some((_, after)) = name.split_once(part.as_str()) else { return false };
        name = after;
    }
    name.ends_with(last.as_str())
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
    use super::named;
    use refrain::{DType, Device, Tensor};

    #[test]
    fn a_star_stands_for_any_characters() {
        let tensor = Tensor::zeros([1], DType::F32, &Device::cpu()).unwrap();
        let matches = |pattern: &str, name: &str| named(pattern)(name, &tensor);
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
            assert!(matches(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in [
            ("a.b", "a.bc"),
            ("a.b", "xa.b"),
            ("*.bias", "bias"),
            ("a*a", "a"),
            ("a*b*c", "acb"),
            ("", "a"),
            ("a*", "b"),
        ] {
            assert!(!matches(pattern, name), "{pattern} {name}");
        }
    }
}
