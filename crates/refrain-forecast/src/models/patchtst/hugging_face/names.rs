//! Which tensors of a checkpoint are which of a model.

use crate::Result;
use crate::models::Distribution;
use crate::models::patchtst::{NormKind, PatchTstConfig, Pooling, Positions};
use refrain::Tensor;

/// A tensor of a model, and those of a checkpoint that it consists of.
#[derive(Clone)]
pub(super) struct Entry {
    pub(super) own: String,
    /// Its shape in the model.
    pub(super) own_shape: Vec<usize>,
    /// Their names in the order in which they follow one another along the first axis.
    pub(super) theirs: Vec<String>,
    /// The shape of each of them.
    pub(super) shape: Vec<usize>,
    /// Whether they are transposed (matrices).
    transposed: bool,
}

impl Entry {
    fn same(own: impl Into<String>, theirs: impl Into<String>, shape: impl Into<Vec<usize>>) -> Entry {
        let shape = shape.into();
        Entry {
            own: own.into(),
            own_shape: shape.clone(),
            theirs: vec![theirs.into()],
            shape,
            transposed: false,
        }
    }

    /// The tensor of the model, made of those of the checkpoint.
    pub(super) fn join(&self, theirs: &[Tensor]) -> Result<Tensor> {
        let turned = |tensor: &Tensor| match self.transposed {
            true => tensor.transpose(0, 1),
            false => Ok(tensor.clone()),
        };
        let parts = theirs.iter().map(turned).collect::<refrain::Result<Vec<_>>>()?;
        Ok(Tensor::concat(&parts, 0)?.reshape(&self.own_shape[..])?)
    }

    /// The tensors of the checkpoint, made of that of the model.
    pub(super) fn split(&self, own: &Tensor) -> Result<Vec<Tensor>> {
        let mut shape = self.shape.clone();
        if self.transposed {
            shape.reverse();
        }
        let first = shape.first().copied().unwrap_or(1);
        let whole: Vec<usize> =
            std::iter::once(first * self.theirs.len()).chain(shape.iter().skip(1).copied()).collect();
        let whole = own.detach().reshape(whole)?;
        let part = |at: usize| -> Result<Tensor> {
            let part = whole.narrow(0, at * first, first)?;
            let part = if self.transposed { part.transpose(0, 1)? } else { part };
            Ok(part.contiguous()?)
        };
        (0..self.theirs.len()).map(part).collect()
    }
}

const ENCODER: &str = "model.encoder";

/// What the head of a model forecasts, if it has one beside its encoder.
#[derive(Clone, Copy)]
pub(super) enum HeadOf {
    /// None.
    Nothing,
    /// One value in each row.
    Values,
    /// The parameters of a distribution.
    Distribution(Distribution),
}

impl HeadOf {
    pub(super) fn distribution(self) -> Option<Distribution> {
        match self {
            HeadOf::Distribution(distribution) => Some(distribution),
            HeadOf::Nothing | HeadOf::Values => None,
        }
    }
}

/// The tensors of a model with this head, without positions that are not kept with the weights.
pub(super) fn entries(config: &PatchTstConfig, head: HeadOf) -> Vec<Entry> {
    let PatchTstConfig { channels, patch, d_model, ffn, horizon, .. } = *config;
    let embedder = format!("{ENCODER}.embedder.input_embedding");
    let sizes = [channels, patch, d_model];
    let mut all =
        of_channels("embed", (embedder.as_str(), embedder.as_str()), sizes, config.individual_embedding);
    if config.positions != Positions::Sinusoidal {
        all.push(Entry::same("pos", positions(), [config.tokens(), d_model]));
    }
    if config.pooling == Pooling::Cls {
        let cls = format!("{ENCODER}.positional_encoder.cls_token");
        let entry = Entry::same("cls", cls, [1, 1, 1, d_model]);
        all.push(Entry { own_shape: vec![d_model], ..entry });
    }
    for layer in 0..config.layers {
        let (own, theirs) = (format!("layers.{layer}"), format!("{ENCODER}.layers.{layer}"));
        for (own_part, shape) in [("weight", vec![d_model, d_model]), ("bias", vec![d_model])] {
            let mut own_shape = shape.clone();
            own_shape[0] *= 3;
            let part = |name: &str| format!("{theirs}.self_attn.{name}_proj.{own_part}");
            all.push(Entry {
                own: format!("{own}.attn.qkv.{own_part}"),
                own_shape,
                theirs: ["q", "k", "v"].map(part).to_vec(),
                shape: shape.clone(),
                transposed: false,
            });
            all.push(Entry::same(format!("{own}.attn.o.{own_part}"), part("out"), shape));
        }
        for (own_part, number) in norms(config) {
            let norm = norm(config, layer, number);
            let statistics = match config.norm {
                NormKind::Batch => &["weight", "bias", "running_mean", "running_var"][..],
                NormKind::Layer | NormKind::Rms => &["weight", "bias"],
            };
            let entry =
                |part| Entry::same(format!("{own}.{own_part}.{part}"), format!("{norm}.{part}"), [d_model]);
            all.extend(statistics.iter().map(entry));
        }
        for (own_part, their_part, sizes) in
            [("ffn.0", "ff.0", [ffn, d_model]), ("ffn.2", "ff.3", [d_model, ffn])]
        {
            let entry = |part: &str, shape: &[usize]| {
                Entry::same(
                    format!("{own}.{own_part}.{part}"),
                    format!("{theirs}.{their_part}.{part}"),
                    shape,
                )
            };
            all.push(entry("weight", &sizes));
            if config.ffn_bias {
                all.push(entry("bias", &sizes[..1]));
            }
        }
    }
    let sizes = [channels, config.pooled(), horizon];
    match head {
        HeadOf::Nothing => {}
        HeadOf::Values => all.extend(of_channels(
            "head",
            ("head.projection", "head.projections"),
            sizes,
            config.individual_head,
        )),
        HeadOf::Distribution(Distribution::StudentT) => {
            all.extend(of_student_t("head", "head.projection.proj", [config.pooled(), horizon]));
        }
    }
    all
}

/// The name of the positions.
pub(super) fn positions() -> String {
    format!("{ENCODER}.positional_encoder.position_enc")
}

/// The counters of PyTorch's batch norm, which nothing reads. The model does not have them.
pub(super) fn counters(config: &PatchTstConfig) -> Vec<String> {
    let of_layer = |layer| {
        norms(config)
            .into_iter()
            .map(move |(_, number)| format!("{}.num_batches_tracked", norm(config, layer, number)))
    };
    match config.norm {
        NormKind::Batch => (0..config.layers).flat_map(of_layer).collect(),
        NormKind::Layer | NormKind::Rms => Vec::new(),
    }
}

/// The norms of a layer: their names in the model, their numbers in the checkpoint.
fn norms(config: &PatchTstConfig) -> Vec<(&'static str, usize)> {
    let channels = config.channel_attention.then_some(("norm_channels", 2));
    [("norm1", 1), ("norm2", 3)].into_iter().chain(channels).collect()
}

fn norm(config: &PatchTstConfig, layer: usize, number: usize) -> String {
    let inner = if config.norm == NormKind::Batch { ".batchnorm" } else { "" };
    format!("{ENCODER}.layers.{layer}.norm_sublayer{number}{inner}")
}

/// A linear layer whose results are, in a model, the location, the scale and the degrees of freedom; each is a layer of its own in
/// a checkpoint, under the numbers 1, 2 and 0.
fn of_student_t(own: &str, theirs: &str, [inputs, outputs]: [usize; 2]) -> Vec<Entry> {
    let entry = |(part, shape): (&str, Vec<usize>)| {
        let theirs = [1, 2, 0].map(|number| format!("{theirs}.{number}.{part}")).to_vec();
        let mut own_shape = shape.clone();
        own_shape[0] *= theirs.len();
        Entry { own: format!("{own}.{part}"), own_shape, theirs, shape, transposed: false }
    };
    [("weight", vec![outputs, inputs]), ("bias", vec![outputs])].map(entry).to_vec()
}

/// A linear layer that channels share, under the first name, or one for each, under numbers after the second name.
fn of_channels(
    own: &str,
    (shared, individual): (&str, &str),
    [channels, inputs, outputs]: [usize; 3],
    is_individual: bool,
) -> Vec<Entry> {
    let parts = [("weight", vec![outputs, inputs]), ("bias", vec![outputs])];
    let entry = |(part, shape): (&str, Vec<usize>)| {
        let name = format!("{own}.{part}");
        if !is_individual {
            return Entry::same(name, format!("{shared}.{part}"), shape);
        }
        let transposed = shape.len() == 2;
        Entry {
            own: name,
            own_shape: vec![channels, if transposed { inputs } else { 1 }, outputs],
            theirs: (0..channels).map(|channel| format!("{individual}.{channel}.{part}")).collect(),
            shape,
            transposed,
        }
    };
    parts.into_iter().map(entry).collect()
}
