//! Parameters: declared by layers under dotted names, then laid into one flat buffer.

use std::cell::RefCell;
use std::collections::HashSet;
use std::fmt::Display;
use std::rc::Rc;
use std::sync::{Arc, OnceLock};

use refrain::optim::{Segment, SegmentTable};
use refrain::{DType, Device, Generator, Shape, Tensor, no_grad};

use crate::error::{Error, Result};
use crate::init::Init;

/// Parameters begin at multiples of this many bytes.
const ALIGNMENT: usize = 256;

/// Names that begin with this belong to the optimiser's state in a checkpoint.
pub(crate) const RESERVED: &str = "optimizer.";

/// A parameter or buffer that a layer declared; it has a tensor once the builder has built.
///
/// A clone is a handle to the same tensor.
#[derive(Clone)]
pub struct Parameter(Arc<Slot>);

struct Slot {
    name: String,
    tensor: OnceLock<Tensor>,
}

impl Parameter {
    /// The full dotted name.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// The tensor: a view of the flat buffer, or for a buffer its own memory.
    ///
    /// # Errors
    /// Before [`ParameterBuilder::build`].
    pub fn tensor(&self) -> Result<&Tensor> {
        self.0.tensor.get().ok_or_else(|| {
            Error::parameter(
                self.name(),
                "it has no memory yet; call `build` on the builder that declared it",
            )
        })
    }
}

struct Declaration {
    slot: Parameter,
    shape: Shape,
    init: Init,
}

/// How large a model is, known before it has memory. Numbers are of any size: settings may be absurd.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ModelSize {
    /// Tensors, parameters and buffers together.
    pub tensors: u64,
    /// Numbers in all parameters.
    pub parameters: u128,
    /// Numbers in all buffers (running statistics and the like).
    pub buffers: u128,
}

impl ModelSize {
    /// The size of so many layers, from that of the model with one of them and with two.
    pub fn with_layers(layers: usize, one: ModelSize, two: ModelSize) -> ModelSize {
        let more = layers.saturating_sub(1) as u64;
        let wide = |one: u128, two: u128| one.saturating_add((two - one).saturating_mul(more.into()));
        ModelSize {
            tensors: one.tensors.saturating_add((two.tensors - one.tensors).saturating_mul(more)),
            parameters: wide(one.parameters, two.parameters),
            buffers: wide(one.buffers, two.buffers),
        }
    }
}

#[derive(Default)]
struct Declarations {
    names: HashSet<String>,
    parameters: Vec<Declaration>,
    buffers: Vec<Declaration>,
    built: bool,
}

/// Collects what layers declare; a scope of it puts a prefix before their names.
///
/// A clone and a scope collect into the same place.
#[derive(Clone)]
pub struct ParameterBuilder {
    device: Device,
    dtype: DType,
    prefix: String,
    declarations: Rc<RefCell<Declarations>>,
}

impl ParameterBuilder {
    /// Collects parameters of one floating-point dtype for one device.
    pub fn new(device: &Device, dtype: DType) -> ParameterBuilder {
        ParameterBuilder { device: device.clone(), dtype, prefix: String::new(), declarations: Rc::default() }
    }

    /// The same builder, with `name` and a dot before all names: `builder.scope("layers").scope(0)`.
    pub fn scope(&self, name: impl Display) -> ParameterBuilder {
        ParameterBuilder { prefix: format!("{}{name}.", self.prefix), ..self.clone() }
    }

    /// The dtype of the parameters.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The size of what was declared so far.
    pub fn size(&self) -> ModelSize {
        sizes(&self.declarations.borrow())
    }

    /// Declares a parameter that training changes.
    ///
    /// # Errors
    /// If the name is empty, taken or reserved (`optimizer.`), or [`ParameterBuilder::build`] was called.
    pub fn parameter(&self, name: impl Display, shape: impl Into<Shape>, init: Init) -> Result<Parameter> {
        self.declare(name, shape.into(), init, |d| &mut d.parameters)
    }

    /// Declares a tensor that belongs to the model and its checkpoints but has no gradient, such as running
    /// statistics.
    ///
    /// # Errors
    /// As for [`ParameterBuilder::parameter`].
    pub fn buffer(&self, name: impl Display, shape: impl Into<Shape>, init: Init) -> Result<Parameter> {
        self.declare(name, shape.into(), init, |d| &mut d.buffers)
    }

    fn declare(
        &self,
        name: impl Display,
        shape: Shape,
        init: Init,
        list: impl Fn(&mut Declarations) -> &mut Vec<Declaration>,
    ) -> Result<Parameter> {
        let name = format!("{}{name}", self.prefix);
        let mut declarations = self.declarations.borrow_mut();
        if declarations.built {
            return Err(Error::parameter(name, "the builder has built already; declare it before `build`"));
        }
        if name.is_empty() || name.ends_with('.') || name.starts_with(RESERVED) {
            let message = "names are not empty, do not end with a dot and do not begin with `optimizer.`, which checkpoints use; choose another";
            return Err(Error::parameter(name, message));
        }
        if !declarations.names.insert(name.clone()) {
            let message = "declared twice; give each layer a scope of its own (`builder.scope(..)`)";
            return Err(Error::parameter(name, message));
        }
        let slot = Parameter(Arc::new(Slot { name, tensor: OnceLock::new() }));
        list(&mut declarations).push(Declaration { slot: slot.clone(), shape, init });
        Ok(slot)
    }

    /// Makes the memory: all parameters in one flat buffer, each from a multiple of 256 bytes on, their
    /// gradients in a second one of the same layout, zeros between. Initial values are drawn from
    /// `generator` in the order of declaration.
    ///
    /// # Errors
    /// If this builder has built already, the dtype is not floating-point, or the device's memory does not
    /// suffice.
    pub fn build(&self, generator: &Generator) -> Result<Parameters> {
        let mut declarations = self.declarations.borrow_mut();
        if declarations.built {
            return Err(Error::invalid(
                "build",
                "the builder has built already; make a new builder and model",
            ));
        }
        if !self.dtype.is_float() {
            let message = format!("parameters of dtype {}; use one of f64, f32, f16, bf16", self.dtype);
            return Err(Error::invalid("build", message));
        }
        let ModelSize { tensors, parameters, buffers } = sizes(&declarations);
        let padded = parameters.saturating_add(buffers).saturating_mul(self.dtype.size() as u128);
        if padded.saturating_add(u128::from(tensors) * ALIGNMENT as u128) > isize::MAX as u128 {
            let message =
                format!("{parameters} parameters are more than memory can hold; make the model smaller");
            return Err(Error::invalid("build", message));
        }
        let alignment = ALIGNMENT / self.dtype.size();
        let mut segments = Vec::with_capacity(declarations.parameters.len());
        let mut end = 0;
        for declaration in &declarations.parameters {
            segments.push(Segment::new(end, declaration.shape.numel()));
            end = (end + declaration.shape.numel()).next_multiple_of(alignment);
        }
        let values = Tensor::zeros(end, self.dtype, &self.device)?;
        let gradients = Tensor::zeros(end, self.dtype, &self.device)?;
        let mut entries = Vec::with_capacity(segments.len());
        for (declaration, &segment) in declarations.parameters.iter().zip(&segments) {
            let cut = |flat: &Tensor| -> Result<Tensor> {
                let run = flat.narrow(0, segment.offset, segment.length)?;
                Ok(run.view(&declaration.shape)?.detach())
            };
            let (tensor, gradient) = (cut(&values)?, cut(&gradients)?);
            no_grad(|| declaration.init.fill(&tensor, generator))?;
            tensor.set_requires_grad(true)?;
            tensor.set_grad(&gradient)?;
            entries.push(Entry { name: declaration.slot.name().to_string(), tensor, gradient, segment });
        }
        let mut buffers = Vec::with_capacity(declarations.buffers.len());
        for declaration in &declarations.buffers {
            let tensor = Tensor::zeros(&declaration.shape, self.dtype, &self.device)?;
            declaration.init.fill(&tensor, generator)?;
            buffers.push((declaration.slot.name().to_string(), tensor));
        }
        let segments = SegmentTable::new(&segments, &self.device)?;
        // All that can fail has been done: now the layers get their tensors.
        let tensors = entries.iter().map(|e| &e.tensor).chain(buffers.iter().map(|(_, t)| t));
        for (declaration, tensor) in declarations.parameters.iter().chain(&declarations.buffers).zip(tensors)
        {
            let _ = declaration.slot.0.tensor.set(tensor.clone());
        }
        declarations.built = true;
        Ok(Parameters { values, gradients, segments, entries, buffers })
    }
}

fn sizes(declarations: &Declarations) -> ModelSize {
    let numbers = |list: &[Declaration]| {
        let of =
            |d: &Declaration| d.shape.dims().iter().fold(1u128, |n, &size| n.saturating_mul(size as u128));
        list.iter().map(of).fold(0, u128::saturating_add)
    };
    ModelSize {
        tensors: (declarations.parameters.len() + declarations.buffers.len()) as u64,
        parameters: numbers(&declarations.parameters),
        buffers: numbers(&declarations.buffers),
    }
}

/// How an optimiser treats some of the parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Group {
    /// The optimiser's weight decay is multiplied by this: 0 for parameters that shall not decay.
    pub decay_factor: f64,
    /// The learning rate is multiplied by this.
    pub rate_factor: f64,
    /// Whether the parameter is trained at all. One that is not gets no gradient and stays as it is.
    pub trainable: bool,
}

impl Default for Group {
    /// Trained, with both factors 1.
    fn default() -> Group {
        Group { decay_factor: 1.0, rate_factor: 1.0, trainable: true }
    }
}

pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) tensor: Tensor,
    pub(crate) gradient: Tensor,
    pub(crate) segment: Segment,
}

/// The parameters of a model in one flat buffer, their gradients in a second, and its other tensors.
pub struct Parameters {
    values: Tensor,
    gradients: Tensor,
    segments: SegmentTable,
    entries: Vec<Entry>,
    buffers: Vec<(String, Tensor)>,
}

impl Parameters {
    /// All parameters in one buffer, with zeros between.
    pub fn values(&self) -> &Tensor {
        &self.values
    }

    /// All gradients in one buffer of the same layout. The backward pass adds to it in place.
    pub fn gradients(&self) -> &Tensor {
        &self.gradients
    }

    /// Which run of the flat buffers is updated how.
    pub fn segments(&self) -> &SegmentTable {
        &self.segments
    }

    /// How many numbers the parameters hold, without the zeros between.
    pub fn count(&self) -> usize {
        self.entries.iter().map(|e| e.segment.length).sum()
    }

    /// The names of the parameters in the order of declaration.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.iter().map(|e| e.name.as_str())
    }

    /// Names and tensors of the parameters in the order of declaration.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        self.entries.iter().map(|e| (e.name.as_str(), &e.tensor))
    }

    /// Names and tensors of the buffers (running statistics and the like) in the order of declaration.
    pub fn buffers(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        self.buffers.iter().map(|(name, tensor)| (name.as_str(), tensor))
    }

    /// A parameter or buffer by its full name.
    ///
    /// # Errors
    /// If there is none of that name.
    pub fn get(&self, name: &str) -> Result<&Tensor> {
        let found = self.iter().chain(self.buffers()).find(|(n, _)| *n == name);
        found.map(|(_, tensor)| tensor).ok_or_else(|| {
            Error::parameter(name, "there is no parameter or buffer of this name; see `names()`")
        })
    }

    /// Puts the parameters that `select` picks by name and tensor into a group; returns how many.
    ///
    /// Parameters that are not to be trained no longer ask for a gradient, and the one gathered so far is
    /// zeroed; those that are again, do.
    ///
    /// ```
    /// # use refrain::{DType, Device, Generator};
    /// # use refrain_nn::{Group, Linear, ParameterBuilder};
    /// # let device = Device::cpu();
    /// # let builder = ParameterBuilder::new(&device, DType::F32);
    /// # Linear::new(&builder, 3, 1)?;
    /// # let mut parameters = builder.build(&Generator::new(&device, 0)?)?;
    /// let without_decay = Group { decay_factor: 0.0, ..Group::default() };
    /// assert_eq!(parameters.set_group(|name, tensor| tensor.rank() < 2, without_decay)?, 1);
    /// # Ok::<(), refrain_nn::Error>(())
    /// ```
    ///
    /// # Errors
    /// If a factor is negative or not finite.
    pub fn set_group(&mut self, select: impl Fn(&str, &Tensor) -> bool, group: Group) -> Result<usize> {
        let picked: Vec<bool> = self.entries.iter().map(|e| select(&e.name, &e.tensor)).collect();
        let Group { decay_factor, rate_factor, trainable } = group;
        let settle = |(e, &picked): (&Entry, &bool)| match picked {
            true => Segment { decay_factor, rate_factor, trainable, ..e.segment },
            false => e.segment,
        };
        let segments: Vec<Segment> = self.entries.iter().zip(&picked).map(settle).collect();
        self.segments.write_from(&segments)?;
        for (entry, segment) in self.entries.iter_mut().zip(segments) {
            if segment.trainable != entry.segment.trainable {
                entry.gradient.fill(0.0)?;
                entry.tensor.set_requires_grad(segment.trainable)?;
                if segment.trainable {
                    entry.tensor.set_grad(&entry.gradient)?;
                }
            }
            entry.segment = segment;
        }
        Ok(picked.into_iter().filter(|&p| p).count())
    }

    /// Sets all gradients to zero, in one launch. An optimiser's step has done so already.
    pub fn zero_gradients(&self) -> Result<()> {
        Ok(self.gradients.fill(0.0)?)
    }

    pub(crate) fn entries(&self) -> &[Entry] {
        &self.entries
    }
}
