//! Recurrent layers: GRU and LSTM. Parameters have the names, shapes and order of gates of PyTorch.

use refrain::{Activation, Tensor};

use crate::error::{Error, Result, in_layer};
use crate::init::Init;
use crate::layer_tree::{LayerTree, Layers};
use crate::parameters::{Parameter, ParameterBuilder};

/// What a cell has learned: for each gate, a row of weights for each hidden feature.
struct Gates {
    weight_ih: Parameter,
    weight_hh: Parameter,
    bias_ih: Parameter,
    bias_hh: Parameter,
}

impl Gates {
    /// Parameters with names that end with `suffix`, uniform within `1 / sqrt(hidden)` of 0.
    fn new(
        builder: &ParameterBuilder,
        gates: usize,
        inputs: usize,
        hidden: usize,
        suffix: &str,
    ) -> Result<Gates> {
        let init = Init::torch_bias(hidden);
        let rows = gates * hidden;
        Ok(Gates {
            weight_ih: builder.parameter(format!("weight_ih{suffix}"), [rows, inputs], init)?,
            weight_hh: builder.parameter(format!("weight_hh{suffix}"), [rows, hidden], init)?,
            bias_ih: builder.parameter(format!("bias_ih{suffix}"), rows, init)?,
            bias_hh: builder.parameter(format!("bias_hh{suffix}"), rows, init)?,
        })
    }

    /// Adds the parameters to the tree of a layer.
    fn show(&self, tree: LayerTree) -> LayerTree {
        let all = [&self.weight_ih, &self.weight_hh, &self.bias_ih, &self.bias_hh];
        all.into_iter().fold(tree, LayerTree::parameter)
    }

    /// Features of the input.
    fn inputs(&self) -> usize {
        self.weight_ih.shape().dims()[1]
    }

    /// What the input contributes, for all time steps together: `[.., inputs]` to `[.., gates * hidden]`.
    fn of_input(&self, x: &Tensor) -> Result<Tensor> {
        Ok(x.linear(self.weight_ih.tensor()?, Some(self.bias_ih.tensor()?), Activation::None, None)?)
    }
}

/// What a cell carries from one time step to the next.
trait Cell: Sized {
    const NAME: &'static str;
    /// The hidden state, and what else is carried.
    type State: Clone;

    fn new(builder: &ParameterBuilder, inputs: usize, hidden: usize, suffix: &str) -> Result<Self>;
    fn gates(&self) -> &Gates;
    fn hidden(&self) -> usize;
    /// All time steps, from what the input contributes to the gates `[B, T, gates * hidden]`: the outputs `[B, T, hidden]`, and the
    /// last state.
    fn sequence(&self, inputs: &Tensor, initial: &Self::State) -> Result<(Tensor, Self::State)>;
    fn zeros(&self, like: &Tensor, batch: usize) -> Result<Self::State>;
}

/// All time steps of all layers: the outputs of the last one `[B, T, hidden]`, and the last state of each.
fn run<C: Cell>(cells: &[C], x: &Tensor, initial: Option<&[C::State]>) -> Result<(Tensor, Vec<C::State>)> {
    let &[batch, steps, _] = x.dims() else {
        let message = format!("the input has shape {}; it must be [batch, time, features]", x.shape());
        return Err(Error::invalid(C::NAME, message));
    };
    if initial.is_some_and(|states| states.len() != cells.len()) || steps == 0 {
        let message = format!(
            "{} layers need a state each and an input of at least one time step; the input has {steps}",
            cells.len()
        );
        return Err(Error::invalid(C::NAME, message));
    }
    let mut sequence = x.clone();
    let mut last = Vec::with_capacity(cells.len());
    for (layer, cell) in cells.iter().enumerate() {
        let inputs = cell.gates().of_input(&sequence)?;
        let begin = match initial {
            Some(states) => states[layer].clone(),
            None => cell.zeros(&inputs, batch)?,
        };
        let (outputs, state) = cell.sequence(&inputs, &begin)?;
        sequence = outputs;
        last.push(state);
    }
    Ok((sequence, last))
}

fn cells<C: Cell>(builder: &ParameterBuilder, inputs: usize, hidden: usize, layers: usize) -> Result<Vec<C>> {
    if layers == 0 || hidden == 0 {
        let message = format!("{layers} layers of {hidden} hidden features; use at least one of each");
        return Err(Error::invalid(C::NAME, message));
    }
    (0..layers)
        .map(|layer| C::new(builder, if layer == 0 { inputs } else { hidden }, hidden, &format!("_l{layer}")))
        .collect()
}

/// A gated recurrent unit (Cho et al., 2014), in the form of PyTorch: `h' = n + z (h - n)`, where `r` and `z` are sigmoids and
/// `n = tanh(W x + b + r (U h + c))`. Parameters `weight_ih` `[3 hidden, inputs]`, `weight_hh` `[3 hidden, hidden]`, `bias_ih` and
/// `bias_hh` `[3 hidden]`, for `r`, `z` and `n`.
pub struct GruCell {
    gates: Gates,
    hidden: usize,
}

impl GruCell {
    /// A cell with the initial values of PyTorch: uniform within `1 / sqrt(hidden)` of 0.
    ///
    /// # Errors
    /// If the names are used already in this scope.
    pub fn new(builder: &ParameterBuilder, inputs: usize, hidden: usize) -> Result<GruCell> {
        Cell::new(builder, inputs, hidden, "")
    }

    /// One time step: the input `[B, inputs]` and the hidden state `[B, hidden]` to the next hidden state.
    ///
    /// # Errors
    /// If shapes, dtypes or devices do not fit the parameters.
    pub fn forward(&self, x: &Tensor, h: &Tensor) -> Result<Tensor> {
        in_layer(self, || {
            if x.rank() != 2 {
                let message = format!("the input has shape {}; it must be [batch, features]", x.shape());
                return Err(Error::invalid(GruCell::NAME, message));
            }
            let inputs = self.gates.of_input(x)?.unsqueeze(-2)?;
            Ok(self.sequence(&inputs, h)?.1)
        })
    }
}

impl Cell for GruCell {
    const NAME: &'static str = "Gru";
    type State = Tensor;

    fn new(builder: &ParameterBuilder, inputs: usize, hidden: usize, suffix: &str) -> Result<GruCell> {
        Ok(GruCell { gates: Gates::new(builder, 3, inputs, hidden, suffix)?, hidden })
    }

    fn gates(&self) -> &Gates {
        &self.gates
    }

    fn hidden(&self) -> usize {
        self.hidden
    }

    fn sequence(&self, inputs: &Tensor, initial: &Tensor) -> Result<(Tensor, Tensor)> {
        let outputs = inputs.gru(self.gates.weight_hh.tensor()?, self.gates.bias_hh.tensor()?, initial)?;
        let last = outputs.select(1, inputs.dims()[1] - 1)?;
        Ok((outputs, last))
    }

    fn zeros(&self, like: &Tensor, batch: usize) -> Result<Tensor> {
        Ok(Tensor::zeros([batch, self.hidden], like.dtype(), like.device())?)
    }
}

/// What an [`LstmCell`] carries from one time step to the next: both `[B, hidden]`.
#[derive(Clone, Debug)]
pub struct LstmState {
    /// The hidden state, which is also the output.
    pub h: Tensor,
    /// The cell state.
    pub c: Tensor,
}

/// Long short-term memory (Hochreiter and Schmidhuber, 1997), in the form of PyTorch: `c' = f c + i g`, `h' = o tanh(c')`.
/// Parameters as those of [`GruCell`], with four gates: `i`, `f`, `g` and `o`.
pub struct LstmCell {
    gates: Gates,
    hidden: usize,
}

impl LstmCell {
    /// A cell with the initial values of PyTorch: uniform within `1 / sqrt(hidden)` of 0.
    ///
    /// # Errors
    /// If the names are used already in this scope.
    pub fn new(builder: &ParameterBuilder, inputs: usize, hidden: usize) -> Result<LstmCell> {
        Cell::new(builder, inputs, hidden, "")
    }

    /// One time step: the input `[B, inputs]` and the state to the next state.
    ///
    /// # Errors
    /// If shapes, dtypes or devices do not fit the parameters.
    pub fn forward(&self, x: &Tensor, state: &LstmState) -> Result<LstmState> {
        in_layer(self, || {
            if x.rank() != 2 {
                let message = format!("the input has shape {}; it must be [batch, features]", x.shape());
                return Err(Error::invalid(LstmCell::NAME, message));
            }
            let inputs = self.gates.of_input(x)?.unsqueeze(-2)?;
            Ok(self.sequence(&inputs, state)?.1)
        })
    }
}

impl Cell for LstmCell {
    const NAME: &'static str = "Lstm";
    type State = LstmState;

    fn new(builder: &ParameterBuilder, inputs: usize, hidden: usize, suffix: &str) -> Result<LstmCell> {
        Ok(LstmCell { gates: Gates::new(builder, 4, inputs, hidden, suffix)?, hidden })
    }

    fn gates(&self) -> &Gates {
        &self.gates
    }

    fn hidden(&self) -> usize {
        self.hidden
    }

    fn sequence(&self, inputs: &Tensor, initial: &LstmState) -> Result<(Tensor, LstmState)> {
        let (weight, bias) = (self.gates.weight_hh.tensor()?, self.gates.bias_hh.tensor()?);
        let (outputs, cells) = inputs.lstm(weight, bias, &initial.h, &initial.c)?;
        let last = |t: &Tensor| t.select(1, inputs.dims()[1] - 1);
        let state = LstmState { h: last(&outputs)?, c: last(&cells)? };
        Ok((outputs, state))
    }

    fn zeros(&self, like: &Tensor, batch: usize) -> Result<LstmState> {
        let zeros = || Tensor::zeros([batch, self.hidden], like.dtype(), like.device());
        Ok(LstmState { h: zeros()?, c: zeros()? })
    }
}

macro_rules! recurrent {
    ($($(#[$doc:meta])* $name:ident, $cell:ident, $state:ty, $state_doc:literal;)*) => {$(
        impl Layers for $cell {
            fn layers(&self) -> LayerTree {
                let tree = LayerTree::new(stringify!($cell)).setting("inputs", self.gates.inputs());
                self.gates.show(tree.setting("hidden", self.hidden))
            }
        }

        impl Layers for $name {
            fn layers(&self) -> LayerTree {
                let inputs = self.0.first().map_or(0, |cell| cell.gates.inputs());
                let tree = LayerTree::new(stringify!($name)).setting("inputs", inputs);
                let tree = tree.setting("hidden", self.hidden()).setting("layers", self.0.len());
                self.0.iter().fold(tree, |tree, cell| cell.gates.show(tree))
            }
        }

        $(#[$doc])*
        pub struct $name(Vec<$cell>);

        impl $name {
            /// `layers` layers, of which each reads the outputs of the one before it. The parameters of layer `k` end with `_lk`.
            ///
            /// # Errors
            /// If there is no layer or no hidden feature, or the names are used already in this scope.
            pub fn new(builder: &ParameterBuilder, inputs: usize, hidden: usize, layers: usize) -> Result<$name> {
                Ok($name(cells(builder, inputs, hidden, layers)?))
            }

            #[doc = concat!("`[B, T, inputs]` to the outputs of the last layer, `[B, T, hidden]`, and the last state of each layer: ", $state_doc, ". Without `initial`, states begin as zeros.")]
            ///
            /// # Errors
            /// If shapes, dtypes or devices do not fit the parameters, there is no time step, or not one state for each layer.
            pub fn forward(&self, x: &Tensor, initial: Option<&[$state]>) -> Result<(Tensor, Vec<$state>)> {
                in_layer(self, || run(&self.0, x, initial))
            }

            /// Hidden features.
            pub fn hidden(&self) -> usize {
                self.0.first().map_or(0, Cell::hidden)
            }
        }
    )*};
}

recurrent! {
    /// Layers of [`GruCell`]s over sequences.
    ///
    /// ```
    /// use refrain::{DType, Device, Generator, Tensor};
    /// use refrain_nn::{Gru, ParameterBuilder};
    ///
    /// let device = Device::cpu();
    /// let builder = ParameterBuilder::new(&device, DType::F32);
    /// let gru = Gru::new(&builder, 3, 8, 2)?;
    /// builder.build(&Generator::new(&device, 0)?)?;
    /// let (outputs, last) = gru.forward(&Tensor::ones([4, 10, 3], DType::F32, &device)?, None)?;
    /// assert_eq!((outputs.dims(), last[1].dims()), (&[4, 10, 8][..], &[4, 8][..]));
    /// # Ok::<(), refrain_nn::Error>(())
    /// ```
    Gru, GruCell, Tensor, "`[B, hidden]`";
    /// Layers of [`LstmCell`]s over sequences.
    Lstm, LstmCell, LstmState, "an [`LstmState`]";
}
