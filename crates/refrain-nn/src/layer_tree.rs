//! What a model is made of: a tree of its layers by name.

mod plain;
mod print;
#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::fmt::Display;
use std::rc::Rc;
use std::sync::Arc;

use crate::parameters::Parameter;

/// A layer or a model that shows what it is made of (`print(model)`, `named_parameters()` and `extra_repr()` of PyTorch).
///
/// Derive it for a struct of layers, or for an enum that is a choice between layers. The derive implements [`Display`], too.
/// Each field is a part by its name: a layer, a [`Parameter`], or an `Option`, `Vec`, array, tuple or `Box` of these. Numbers,
/// `bool`s, strings and tensors without a [`Parameter`] are no parts. `#[layers(show)]` shows such a field as a setting;
/// `#[layers(skip)]` leaves out a field of another type. `#[layers(crate = path)]` on the type says where this crate is, if your
/// crate has it under another name.
///
/// ```
/// use refrain::{DType, Device, Generator};
/// use refrain_nn::{Dropout, Layers, Linear, ParameterBuilder, Result};
///
/// struct Config {
///     classes: usize,
/// }
///
/// #[derive(Layers)]
/// struct Block {
///     linear: Linear,
///     dropout: Dropout,
///     #[layers(show)]
///     scale: f64,
/// }
///
/// #[derive(Layers)]
/// struct Classifier {
///     body: Vec<Block>,
///     head: Linear,
///     #[layers(skip)]
///     config: Config,
/// }
///
/// let builder = ParameterBuilder::new(&Device::cpu(), DType::F32);
/// let block = |i| -> Result<Block> {
///     let linear = Linear::new(&builder.scope("body").scope(i), 8, 8)?;
///     Ok(Block { linear, dropout: Dropout::new(0.1)?, scale: 0.5 })
/// };
/// let config = Config { classes: 3 };
/// let head = Linear::new(&builder.scope("head"), 8, config.classes)?;
/// let model = Classifier { body: (0..2).map(block).collect::<Result<_>>()?, head, config };
/// assert_eq!(
///     model.to_string(),
///     "\
/// Classifier(  # 171 parameters
///   (body): List(  # 144
///     (0-1): 2 x Block(scale=0.5  # 72
///       (linear): Linear(in_features=8, out_features=8, bias=true)  # 72
///       (dropout): Dropout(p=0.1)
///     )
///   )
///   (head): Linear(in_features=8, out_features=3, bias=true)  # 27
/// )"
/// );
/// let parameters = model.head.layers().parameters();
/// let names: Vec<&str> = parameters.iter().map(|parameter| parameter.name()).collect();
/// assert_eq!(names, ["head.weight", "head.bias"]);
/// # Ok::<(), refrain_nn::Error>(())
/// ```
///
/// [`part_of`](crate::part_of) picks the parameters of a layer, to freeze it for example.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not show its layers",
    note = "derive `Layers` for it; or mark the field with `#[layers(skip)]`, or with `#[layers(show)]` if it is a setting"
)]
pub trait Layers {
    /// The layers, settings and parameters that this one is made of.
    fn layers(&self) -> LayerTree;
}

/// What a layer is made of ([`Layers::layers`]). It prints like a model in PyTorch; the numbers are those of the elements of
/// parameters.
///
/// This is how a layer of parameters shows itself, without the derive:
///
/// ```
/// use refrain::{DType, Device};
/// use refrain_nn::{Init, LayerTree, Layers, Parameter, ParameterBuilder};
///
/// /// `x * weight`
/// struct Scale {
///     weight: Parameter,
/// }
///
/// impl Layers for Scale {
///     fn layers(&self) -> LayerTree {
///         LayerTree::new("Scale").setting("size", self.weight.shape().numel()).parameter(&self.weight)
///     }
/// }
///
/// let builder = ParameterBuilder::new(&Device::cpu(), DType::F32);
/// let scale = Scale { weight: builder.parameter("weight", 8, Init::Constant(1.0))? };
/// assert_eq!(scale.layers().to_string(), "Scale(size=8)  # 8 parameters");
/// # Ok::<(), refrain_nn::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct LayerTree {
    /// The name of the type. Empty: there is nothing to show.
    kind: String,
    settings: Vec<String>,
    parts: Vec<(String, LayerTree)>,
    /// Those that belong to no part.
    own: Vec<Parameter>,
}

impl LayerTree {
    /// A layer of this type.
    pub fn new(kind: impl Into<String>) -> LayerTree {
        LayerTree { kind: kind.into(), ..LayerTree::default() }
    }

    /// What a field without layers and parameters is. It is not shown.
    pub fn nothing() -> LayerTree {
        LayerTree::default()
    }

    /// The parts of a list by their numbers, or nothing if no part is to be shown.
    fn list<'a, T: Layers + 'a>(kind: &str, parts: impl IntoIterator<Item = &'a T>) -> LayerTree {
        let numbered = parts.into_iter().enumerate();
        let list = numbered.fold(LayerTree::new(kind), |list, (i, part)| list.part(i, part));
        if list.parts.is_empty() { LayerTree::nothing() } else { list }
    }

    /// The same with a setting, which is shown in the parentheses behind the name of the type.
    pub fn setting(mut self, name: impl Display, value: impl Display) -> LayerTree {
        self.settings.push(format!("{name}={value}"));
        self
    }

    /// The same with a part, which is shown on a line of its own.
    pub fn part(mut self, name: impl Display, part: &(impl Layers + ?Sized)) -> LayerTree {
        let part = part.layers();
        if !part.is_nothing() {
            self.parts.push((name.to_string(), part));
        }
        self
    }

    /// The same with a parameter or buffer that is counted, but not shown on a line of its own, because the settings say what
    /// it is.
    pub fn parameter(mut self, parameter: &Parameter) -> LayerTree {
        self.own.push(parameter.clone());
        self
    }

    /// All parameters, with those of the parts, in the order in which they are printed. A parameter that several parts share is
    /// there once. [`Parameter::name`] is the name in [`Parameters`](crate::Parameters) and in checkpoints.
    pub fn parameters(&self) -> Vec<Parameter> {
        self.all(false)
    }

    /// All buffers (running statistics and the like), as for [`LayerTree::parameters`].
    pub fn buffers(&self) -> Vec<Parameter> {
        self.all(true)
    }

    /// Number of elements of all parameters.
    pub fn count(&self) -> usize {
        let numel = |parameter: &Parameter| parameter.shape().numel();
        self.parameters().iter().map(numel).fold(0, usize::saturating_add)
    }

    fn is_nothing(&self) -> bool {
        self.kind.is_empty() && self.parts.is_empty() && self.own.is_empty()
    }

    /// What the names of all parameters begin with, without the dot behind it. Empty if there is nothing.
    pub(crate) fn scope(&self) -> String {
        let mut common: Option<Vec<String>> = None;
        self.visit(&mut |parameter| {
            let mut scope: Vec<String> = parameter.name().split('.').map(String::from).collect();
            scope.pop();
            let same = |other: Vec<String>| {
                other.into_iter().zip(&scope).take_while(|(a, b)| a == *b).map(|(a, _)| a).collect()
            };
            common = Some(common.take().map_or_else(|| scope.clone(), same));
        });
        common.unwrap_or_default().join(".")
    }

    fn all(&self, buffers: bool) -> Vec<Parameter> {
        let (mut all, mut known) = (Vec::new(), HashSet::new());
        self.visit(&mut |parameter| {
            if parameter.is_buffer() == buffers && known.insert(parameter.handle()) {
                all.push(parameter.clone());
            }
        });
        all
    }

    fn visit(&self, f: &mut impl FnMut(&Parameter)) {
        self.own.iter().for_each(&mut *f);
        self.parts.iter().for_each(|(_, part)| part.visit(f));
    }
}
