//! Parameters: layers declare them under dotted names, then all are placed in one flat buffer.

use std::cell::RefCell;
use std::collections::HashSet;
use std::fmt::{self, Display};
use std::rc::Rc;
use std::sync::{Arc, OnceLock};

use refrain::optim::{Segment, SegmentTable};
use refrain::{Communicator, DType, Device, Generator, Shape, Tensor, no_grad};

use crate::error::{Error, Result};
use crate::init::Init;
use crate::select::WEIGHT_RANK;

/// Each parameter starts at a multiple of this many bytes.
const ALIGNMENT: usize = 256;

/// The prefix of the names that a checkpoint uses for the state of the optimiser.
pub(crate) const RESERVED: &str = "optimizer.";

/// A parameter or buffer that a layer declared. It gets its tensor when the builder builds.
///
/// A clone is a handle to the same tensor.
#[derive(Clone)]
pub struct Parameter(Arc<Slot>);

struct Slot {
    name: String,
    shape: Shape,
    is_buffer: bool,
    tensor: OnceLock<Tensor>,
}

/// Its name and its shape.
impl fmt::Debug for Parameter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.name(), self.shape())
    }
}

impl Parameter {
    /// The full dotted name.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// The shape, which is known before there is a tensor.
    pub fn shape(&self) -> &Shape {
        &self.0.shape
    }

    /// Whether it is a buffer, which has no gradient.
    pub fn is_buffer(&self) -> bool {
        self.0.is_buffer
    }

    /// The same number for all handles to one tensor.
    pub(crate) fn handle(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }

    /// The tensor. For a parameter it is a view of the flat buffer; a buffer has its own memory.
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
    init: Init,
}

/// How large a model is. This is known before the model has memory. The numbers may be very large, because the
/// settings may be absurd.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ModelSize {
    /// Number of tensors: parameters and buffers.
    pub tensors: u64,
    /// Number of elements of all parameters.
    pub parameters: u128,
    /// Number of elements of all buffers (running statistics and the like).
    pub buffers: u128,
}

impl ModelSize {
    /// The size of a model with this many layers, computed from its sizes with one layer and with two.
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
    batch_ranks: BatchRanks,
}

/// The ranks whose batches are one batch, for layers that compute statistics over a batch. Empty: this process alone.
pub(crate) type BatchRanks = Arc<OnceLock<Communicator>>;

/// Collects the parameters that layers declare. A scope of the builder puts a prefix before their names.
///
/// A clone and a scope collect into the same list.
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

    /// The same builder with `name` and a dot before all names, as in `builder.scope("layers").scope(0)`.
    pub fn scope(&self, name: impl Display) -> ParameterBuilder {
        ParameterBuilder { prefix: format!("{}{name}.", self.prefix), ..self.clone() }
    }

    /// The dtype of the parameters.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The device of the parameters.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The size of everything declared so far.
    pub fn size(&self) -> ModelSize {
        sizes(&self.declarations.borrow())
    }

    /// Declares a trainable parameter.
    ///
    /// # Errors
    /// If the name is empty, used already or reserved (`optimizer.`), or if [`ParameterBuilder::build`] was called.
    pub fn parameter(&self, name: impl Display, shape: impl Into<Shape>, init: Init) -> Result<Parameter> {
        self.declare(name, shape.into(), init, false)
    }

    /// Declares a tensor that belongs to the model and its checkpoints but has no gradient, for example running
    /// statistics.
    ///
    /// # Errors
    /// As for [`ParameterBuilder::parameter`].
    pub fn buffer(&self, name: impl Display, shape: impl Into<Shape>, init: Init) -> Result<Parameter> {
        self.declare(name, shape.into(), init, true)
    }

    /// The ranks whose batches are one batch. They are known later, from [`Parameters::share_batches`].
    pub(crate) fn batch_ranks(&self) -> BatchRanks {
        self.declarations.borrow().batch_ranks.clone()
    }

    fn declare(&self, name: impl Display, shape: Shape, init: Init, is_buffer: bool) -> Result<Parameter> {
        let name = format!("{}{name}", self.prefix);
        let mut declarations = self.declarations.borrow_mut();
        if declarations.built {
            return Err(Error::parameter(
                name,
                "`build` was called already; declare all parameters before it",
            ));
        }
        if name.is_empty() || name.ends_with('.') || name.starts_with(RESERVED) {
            let message = "a name must not be empty, end with a dot, or begin with `optimizer.`, which checkpoints use; choose another";
            return Err(Error::parameter(name, message));
        }
        if !declarations.names.insert(name.clone()) {
            let message = "declared twice; give each layer its own scope (`builder.scope(..)`)";
            return Err(Error::parameter(name, message));
        }
        let slot = Parameter(Arc::new(Slot { name, shape, is_buffer, tensor: OnceLock::new() }));
        let list = if is_buffer { &mut declarations.buffers } else { &mut declarations.parameters };
        list.push(Declaration { slot: slot.clone(), init });
        Ok(slot)
    }

    /// Allocates the memory. All parameters are in one flat buffer, each at a multiple of 256 bytes. Their gradients
    /// are in a second buffer of the same layout. The bytes between are zeros. Initial values are drawn from
    /// `generator` in the order of declaration.
    ///
    /// Optimisers do not decay norms and biases ([`norms_and_biases`](crate::norms_and_biases)): their [`Group::decay_factor`] is 0.
    /// PyTorch's optimisers decay them; `parameters.set_group(|_, _| true, |group| group.decay_factor = 1.0)` does that here.
    ///
    /// # Errors
    /// If `build` was called before, the dtype is not floating-point, or the device has not enough memory.
    pub fn build(&self, generator: &Generator) -> Result<Parameters> {
        let mut declarations = self.declarations.borrow_mut();
        if declarations.built {
            return Err(Error::invalid(
                "build",
                "`build` was called already; make a new builder and a new model",
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
                format!("{parameters} parameters do not fit into any memory; make the model smaller");
            return Err(Error::invalid("build", message));
        }
        let alignment = ALIGNMENT / self.dtype.size();
        let mut segments = Vec::with_capacity(declarations.parameters.len());
        let mut end = 0;
        for declaration in &declarations.parameters {
            let Group { decay_factor, .. } = Group::of_rank(declaration.slot.shape().rank());
            segments.push(Segment { decay_factor, ..Segment::new(end, declaration.slot.shape().numel()) });
            end = (end + declaration.slot.shape().numel()).next_multiple_of(alignment);
        }
        let values = Tensor::zeros(end, self.dtype, &self.device)?;
        let gradients = Tensor::zeros(end, self.dtype, &self.device)?;
        let mut entries = Vec::with_capacity(segments.len());
        for (declaration, &segment) in declarations.parameters.iter().zip(&segments) {
            let cut = |flat: &Tensor| -> Result<Tensor> {
                let run = flat.narrow(0, segment.offset, segment.length)?;
                Ok(run.view(declaration.slot.shape())?.detach())
            };
            let (tensor, gradient) = (cut(&values)?, cut(&gradients)?);
            no_grad(|| declaration.init.fill(&tensor, generator))?;
            tensor.set_requires_grad(true)?;
            tensor.set_leaf_name(declaration.slot.name())?;
            tensor.set_grad(&gradient)?;
            entries.push(Entry { name: declaration.slot.name().to_string(), tensor, gradient, segment });
        }
        let mut buffers = Vec::with_capacity(declarations.buffers.len());
        for declaration in &declarations.buffers {
            let tensor = Tensor::zeros(declaration.slot.shape(), self.dtype, &self.device)?;
            declaration.init.fill(&tensor, generator)?;
            buffers.push((declaration.slot.name().to_string(), tensor));
        }
        let segments = SegmentTable::new(&segments, &self.device)?;
        // Everything that can fail is done. Now the layers get their tensors.
        let tensors = entries.iter().map(|e| &e.tensor).chain(buffers.iter().map(|(_, t)| t));
        for (declaration, tensor) in declarations.parameters.iter().chain(&declarations.buffers).zip(tensors)
        {
            let _ = declaration.slot.0.tensor.set(tensor.clone());
        }
        declarations.built = true;
        let batch_ranks = declarations.batch_ranks.clone();
        Ok(Parameters { values, gradients, segments, entries, buffers, batch_ranks })
    }
}

/// How much a name must be like another one to be meant: from 0, nothing alike, to 1.
pub(crate) const ALIKE: f64 = 0.6;

/// The error for a name that there is not, with the one that is most like it.
fn unknown<'a>(what: &str, name: &str, names: impl Iterator<Item = &'a str>) -> Error {
    let likeness = |other| (strsim::normalized_damerau_levenshtein(name, other), other);
    let nearest = names.map(likeness).filter(|(alike, _)| *alike >= ALIKE);
    let advice = match nearest.max_by(|(a, _), (b, _)| a.total_cmp(b)) {
        Some((_, nearest)) => format!("did you mean `{nearest}`?"),
        None => "see `names()`".to_owned(),
    };
    Error::parameter(name, format!("there is no {what} of this name; {advice}"))
}

fn sizes(declarations: &Declarations) -> ModelSize {
    let numbers = |list: &[Declaration]| {
        let of = |d: &Declaration| {
            d.slot.shape().dims().iter().fold(1u128, |n, &size| n.saturating_mul(size as u128))
        };
        list.iter().map(of).fold(0, u128::saturating_add)
    };
    ModelSize {
        tensors: (declarations.parameters.len() + declarations.buffers.len()) as u64,
        parameters: numbers(&declarations.parameters),
        buffers: numbers(&declarations.buffers),
    }
}

/// How an optimiser treats a group of parameters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Group {
    /// Factor of the weight decay: 0 switches decay off. Norms and biases begin with 0, all else with 1.
    pub decay_factor: f64,
    /// Factor of the learning rate.
    pub rate_factor: f64,
    /// Whether the parameters are trained. A parameter that is not trained gets no gradient and does not change.
    pub trainable: bool,
}

impl Group {
    /// The group in which a parameter of this rank begins.
    pub(crate) fn of_rank(rank: usize) -> Group {
        Group { decay_factor: if rank < WEIGHT_RANK { 0.0 } else { 1.0 }, ..Group::default() }
    }
}

impl Default for Group {
    /// Trained, with both factors 1: the group in which weights begin.
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

impl Entry {
    pub(crate) fn group(&self) -> Group {
        let Segment { decay_factor, rate_factor, trainable, .. } = self.segment;
        Group { decay_factor, rate_factor, trainable }
    }
}

/// The parameters of a model in one flat buffer, their gradients in a second one, and the buffers of the model.
pub struct Parameters {
    values: Tensor,
    gradients: Tensor,
    segments: SegmentTable,
    entries: Vec<Entry>,
    buffers: Vec<(String, Tensor)>,
    batch_ranks: BatchRanks,
}

impl Parameters {
    /// All parameters in one buffer, with zeros between them.
    pub fn values(&self) -> &Tensor {
        &self.values
    }

    /// All gradients in one buffer of the same layout. The backward pass adds to it in place.
    pub fn gradients(&self) -> &Tensor {
        &self.gradients
    }

    /// The offset, length and group of each parameter in the flat buffers.
    pub fn segments(&self) -> &SegmentTable {
        &self.segments
    }

    /// Number of elements of all parameters, without the zeros between them.
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
            let names = self.names().chain(self.buffers().map(|(name, _)| name));
            unknown("parameter or buffer", name, names)
        })
    }

    /// Changes the groups of the parameters that `select` picks by name and tensor: [`Parameters::named`], [`part_of`](crate::part_of),
    /// [`norms_and_biases`](crate::norms_and_biases), or a function of your own. `change` gets each group as it is,
    /// so a later call keeps what an earlier one set. Returns how many parameters were picked. An optimiser that was made before follows
    /// the groups, too.
    ///
    /// A parameter that is no longer trained does not require a gradient any more, and its accumulated gradient is
    /// set to zero. A parameter that is trained again requires a gradient again.
    ///
    /// ```
    /// # use refrain::{DType, Device, Generator};
    /// # use refrain_nn::{Linear, ParameterBuilder};
    /// # let device = Device::cpu();
    /// # let builder = ParameterBuilder::new(&device, DType::F32);
    /// # Linear::new(&builder, 3, 1)?;
    /// # let mut parameters = builder.build(&Generator::new(&device, 0)?)?;
    /// assert_eq!(parameters.set_group(|_, tensor| tensor.rank() < 2, |group| group.decay_factor = 0.0)?, 1);
    /// assert_eq!(parameters.set_group(|_, _| true, |group| group.rate_factor = 0.1)?, 2);
    /// assert_eq!(parameters.set_group(parameters.named("*ias")?, |group| group.trainable = false)?, 1);
    /// let bias = parameters.group("bias")?;
    /// assert_eq!((bias.decay_factor, bias.rate_factor), (0.0, 0.1));
    /// # Ok::<(), refrain_nn::Error>(())
    /// ```
    ///
    /// # Errors
    /// If a factor is negative or not finite. Then no group is changed.
    pub fn set_group(
        &mut self,
        select: impl Fn(&str, &Tensor) -> bool,
        change: impl Fn(&mut Group),
    ) -> Result<usize> {
        let picked: Vec<bool> = self.entries.iter().map(|e| select(&e.name, &e.tensor)).collect();
        let settle = |(e, &picked): (&Entry, &bool)| {
            let mut group = e.group();
            if picked {
                change(&mut group);
            }
            let Group { decay_factor, rate_factor, trainable } = group;
            Segment { decay_factor, rate_factor, trainable, ..e.segment }
        };
        let segments: Vec<Segment> = self.entries.iter().zip(&picked).map(settle).collect();
        self.segments.write_from(&segments)?;
        for (entry, segment) in self.entries.iter_mut().zip(segments) {
            if segment.trainable != entry.segment.trainable {
                entry.gradient.fill(0.0)?;
                entry.tensor.set_requires_grad(segment.trainable)?;
                if segment.trainable {
                    entry.tensor.set_leaf_name(&entry.name)?;
                    entry.tensor.set_grad(&entry.gradient)?;
                }
            }
            entry.segment = segment;
        }
        Ok(picked.into_iter().filter(|&p| p).count())
    }

    /// The group of a parameter, by its full name.
    ///
    /// # Errors
    /// If there is no parameter of that name.
    pub fn group(&self, name: &str) -> Result<Group> {
        let found = self.entries.iter().find(|e| e.name == name);
        found.map(Entry::group).ok_or_else(|| unknown("parameter", name, self.names()))
    }

    /// From now on, layers that compute statistics over a batch in training ([`BatchNorm`](crate::BatchNorm)) take the batches
    /// of all ranks as one batch. Each rank must have equally many samples. Their forward and backward passes exchange sums.
    ///
    /// Call it on all ranks, before the first step is recorded. With one rank it changes nothing.
    ///
    /// # Errors
    /// If it was called before, or the communicator is on another device.
    pub fn share_batches(&self, communicator: &Communicator) -> Result<()> {
        const WHAT: &str = "share_batches";
        let (theirs, ours) = (communicator.device(), self.values.device());
        if theirs != ours {
            let message = format!(
                "the communicator is on {theirs} and the parameters on {ours}; make both on the same device"
            );
            return Err(Error::invalid(WHAT, message));
        }
        if communicator.size() == 1 {
            return Ok(());
        }
        self.batch_ranks.set(communicator.clone()).map_err(|_| {
            Error::invalid(
                WHAT,
                "the model shares its batches already; make a new model for another communicator",
            )
        })
    }

    /// Sets all gradients to zero, in one launch. The step of an optimiser does this already.
    pub fn zero_gradients(&self) -> Result<()> {
        Ok(self.gradients.fill(0.0)?)
    }

    pub(crate) fn entries(&self) -> &[Entry] {
        &self.entries
    }
}
