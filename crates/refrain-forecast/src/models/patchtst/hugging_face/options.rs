//! The options of a checkpoint's `config.json`, and the settings of a [`PatchTst`](super::super::PatchTst) that they are.

use super::names::HeadOf;
use crate::models::patchtst::{
    DropoutRate, FfnActivation, NormKind, NormPosition, PatchTstConfig, PatchesFrom, Pooling, Positions,
    RevinScale,
};
use crate::models::{Distribution, ForecasterConfig};
use crate::{Error, Result};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use std::path::Path;

/// The model with a head that forecasts.
const PREDICTION: &str = "PatchTSTForPrediction";
/// The model of masked pretraining. Its head fills in patches.
const PRETRAINING: &str = "PatchTSTForPretraining";

/// What `distribution_output` says for Student's t distribution, which is also the default.
const STUDENT_T: &str = "student_t";

/// Options of every model, of pretraining, of other heads, and of how values are drawn at the beginning: none of them has an
/// influence on a forecast.
const NO_INFLUENCE: [&str; 29] = [
    "_name_or_path",
    "architectures",
    "chunk_size_feed_forward",
    "dtype",
    "torch_dtype",
    "id2label",
    "label2id",
    "is_encoder_decoder",
    "model_type",
    "output_attentions",
    "output_hidden_states",
    "problem_type",
    "return_dict",
    "transformers_version",
    "attn_implementation",
    "do_mask_input",
    "mask_type",
    "random_mask_ratio",
    "num_forecast_mask_patches",
    "channel_consistent_masking",
    "unmasked_channel_indices",
    "mask_value",
    "num_targets",
    "output_range",
    "num_parallel_samples",
    "distribution_output",
    "init_std",
    "seed_number",
    // Versions 4.36 to 4.41 had it, and no layer used it.
    "dropout",
];

/// Options of the model before it was part of transformers.
const OLDER: [&str; 19] = [
    "stride",
    "encoder_layers",
    "encoder_attention_heads",
    "encoder_ffn_dim",
    "shared_embedding",
    "shared_projection",
    "norm",
    "dropout_path",
    "positional_encoding",
    "learn_pe",
    "individual",
    "revin",
    "qkv_bias",
    "store_attention",
    "mask_input",
    "mask_ratio",
    "mask_patches",
    "mask_patch_ratios",
    "pooling",
];

/// What `config.json` says.
pub(super) struct Options {
    pub(super) config: PatchTstConfig,
    /// The head that forecasts, which the checkpoint may have.
    pub(super) head: HeadOf,
}

/// The options that have not been read yet.
struct Left<'a> {
    path: &'a Path,
    options: Map<String, Value>,
}

impl Left<'_> {
    fn refuse<T>(&self, problem: String, fix: impl Into<String>) -> Result<T> {
        Err(Error::HuggingFace { path: self.path.to_owned(), problem, fix: fix.into() })
    }

    /// The value of an option, or else the default that transformers has.
    fn take<T: DeserializeOwned>(&mut self, name: &str, default: T) -> Result<T> {
        let Some(value) = self.options.remove(name) else { return Ok(default) };
        match T::deserialize(&value) {
            Ok(read) => Ok(read),
            Err(error) => {
                self.refuse(format!("`{name}` is {value}: {error}"), "save the model with transformers again")
            }
        }
    }

    /// The setting that an option's text is.
    fn choose<T: Copy>(&mut self, name: &str, default: &str, choices: &[(&str, T)]) -> Result<T> {
        let text: String = self.take(name, default.to_owned())?;
        match choices.iter().find(|(choice, _)| *choice == text) {
            Some((_, setting)) => Ok(*setting),
            None => {
                let known: Vec<&str> = choices.iter().map(|(choice, _)| *choice).collect();
                self.refuse(
                    format!("`{name}` is {text:?}"),
                    format!("refrain has {}; import a model that uses one of them", known.join(", ")),
                )
            }
        }
    }

    /// An option that transformers reads and never writes itself: it must have the value that is built in.
    fn built_in(&mut self, name: &str, built_in: Value) -> Result<()> {
        match self.options.remove(name) {
            Some(value) if value != built_in => self.refuse(
                format!("`{name}` is {value}"),
                format!("refrain computes with {built_in}; import a model without this option"),
            ),
            _ => Ok(()),
        }
    }
}

/// Reads `config.json`; `path` is where it is.
pub(super) fn read(path: &Path, text: &[u8]) -> Result<Options> {
    let refuse = |problem: String, fix: &str| Error::HuggingFace {
        path: path.to_owned(),
        problem,
        fix: fix.to_owned(),
    };
    const FIX: &str = "pass the folder of a PatchTST that `save_pretrained` wrote";
    let options: Map<String, Value> = serde_json::from_slice(text)
        .map_err(|error| refuse(format!("not the configuration of a model ({error})"), FIX))?;
    if options.get("model_type") != Some(&json!("patchtst")) {
        let found = options.get("model_type").cloned().unwrap_or_default();
        return Err(refuse(format!("`model_type` is {found}, not \"patchtst\""), FIX));
    }
    let head = match options.get("architectures").map(|names| names[0].as_str()) {
        Some(Some(PREDICTION)) => true,
        Some(Some(PRETRAINING)) => false,
        found => {
            let found = found.flatten().unwrap_or("nothing");
            return Err(refuse(
                format!("`architectures` names {found}, whose head does not forecast"),
                "import a PatchTSTForPrediction, or a PatchTSTForPretraining, which gets a new head",
            ));
        }
    };
    let mut left = Left { path, options };
    if let Some(name) = OLDER.iter().find(|name| left.options.contains_key(**name)) {
        return left.refuse(
            format!("`{name}` is an option of the model before it was part of transformers"),
            "take a newer upload of the model, or train it again with transformers 4.36 or later; remove the option if the \
             model was saved by one of them, which has never read it",
        );
    }
    let loss: Option<String> = left.take("loss", Some("mse".to_owned()))?;
    let head = match (head, loss.as_deref()) {
        (false, _) => HeadOf::Nothing,
        (true, Some("mse")) => HeadOf::Values,
        (true, _) => {
            let known = [(STUDENT_T, Distribution::StudentT)];
            HeadOf::Distribution(left.choose("distribution_output", STUDENT_T, &known)?)
        }
    };
    let config = config(&mut left)?;
    if matches!(head, HeadOf::Distribution(_)) && config.individual_head {
        return left.refuse(
            "`share_projection` is false, and its head forecasts a distribution".to_owned(),
            "refrain reads such a head if all channels share it",
        );
    }
    for name in NO_INFLUENCE {
        left.options.remove(name);
    }
    if let Some(name) = left.options.keys().next() {
        return left.refuse(
            format!("`{name}` is not an option of PatchTST that refrain knows"),
            "remove it if it has no influence on a forecast (transformers ignores options that it does not know)",
        );
    }
    match config.validate() {
        Err(Error::Model { problem, fix }) => Err(refuse(
            format!("its model is not possible: {problem}"),
            &format!("{fix}, or save the model again"),
        )),
        checked => checked.map(|()| Options { config, head }),
    }
}

fn config(left: &mut Left<'_>) -> Result<PatchTstConfig> {
    let scaling = left.take("scaling", json!("std"))?;
    let (revin, revin_scale) = match &scaling {
        Value::String(text) if text == "std" => (true, RevinScale::Std),
        Value::String(text) if text == "mean" => (true, RevinScale::Mean),
        Value::Bool(true) => (true, RevinScale::Mean),
        Value::Null | Value::Bool(false) => (false, RevinScale::Std),
        other => {
            return left.refuse(
                format!("`scaling` is {other}"),
                "refrain has \"std\", \"mean\" and null; import a model that uses one of them",
            );
        }
    };
    let least = if revin_scale == RevinScale::Mean { 1e-10 } else { 1e-5 };
    for (name, built_in) in [
        ("scaling_dim", json!(1)),
        ("keepdim", json!(true)),
        ("minimum_scale", json!(least)),
        ("default_scale", Value::Null),
    ] {
        left.built_in(name, built_in)?;
    }
    let cls: bool = left.take("use_cls_token", false)?;
    let pooling: Option<String> = left.take("pooling_type", Some("mean".to_owned()))?;
    let pooling = match pooling.as_deref() {
        _ if cls => Pooling::Cls,
        None => Pooling::Flatten,
        Some("mean") => Pooling::Mean,
        Some("max") => Pooling::Max,
        Some(other) => {
            return left.refuse(
                format!("`pooling_type` is {other:?}"),
                "refrain has \"mean\", \"max\" and null; import a model that uses one of them",
            );
        }
    };
    let norms = [("batchnorm", NormKind::Batch), ("layernorm", NormKind::Layer)];
    let activations = [
        ("gelu", FfnActivation::Gelu),
        ("gelu_pytorch_tanh", FfnActivation::GeluTanh),
        ("gelu_new", FfnActivation::GeluTanh),
        ("relu", FfnActivation::Relu),
        ("silu", FfnActivation::Silu),
        ("swish", FfnActivation::Silu),
    ];
    let positions = [("sincos", Positions::Stored), ("random", Positions::Learned)];
    let position = |pre_norm: bool| if pre_norm { NormPosition::Pre } else { NormPosition::Post };
    let shared = |left: &mut Left<'_>, name| left.take(name, true).map(|shared: bool| !shared);
    Ok(PatchTstConfig {
        channels: left.take("num_input_channels", 1)?,
        context: left.take("context_length", 32)?,
        horizon: left.take("prediction_length", 24)?,
        past: 0,
        patch: left.take("patch_length", 1)?,
        stride: left.take("patch_stride", 1)?,
        end_padding: false,
        patches_from: PatchesFrom::End,
        d_model: left.take("d_model", 128)?,
        heads: left.take("num_attention_heads", 4)?,
        layers: left.take("num_hidden_layers", 3)?,
        ffn: left.take("ffn_dim", 512)?,
        dropout: 0.0,
        attention_dropout: left.take("attention_dropout", 0.0)?,
        positional_dropout: DropoutRate::Of(left.take("positional_dropout", 0.0)?),
        path_dropout: DropoutRate::Of(left.take("path_dropout", 0.0)?),
        ffn_dropout: DropoutRate::Of(left.take("ff_dropout", 0.0)?),
        head_input_dropout: left.take("head_dropout", 0.0)?,
        head_dropout: 0.0,
        norm: left.choose("norm_type", "batchnorm", &norms)?,
        norm_position: position(left.take("pre_norm", true)?),
        norm_eps: left.take("norm_eps", 1e-5)?,
        activation: left.choose("activation_function", "gelu", &activations)?,
        ffn_bias: left.take("bias", true)?,
        positions: left.choose("positional_encoding_type", "sincos", &positions)?,
        channel_attention: left.take("channel_attention", false)?,
        residual_attention: false,
        revin,
        revin_scale,
        revin_affine: false,
        individual_embedding: shared(left, "share_embedding")?,
        pooling,
        individual_head: shared(left, "share_projection")?,
    })
}

/// The `config.json` of a model that forecasts values or a distribution, and what a user should know of it. `path` is for errors.
pub(super) fn write(
    config: &PatchTstConfig,
    distribution: Option<Distribution>,
    path: &Path,
) -> Result<(Value, Vec<String>)> {
    let PatchTstConfig { context, patch, stride, dropout, .. } = *config;
    let from_start = config.patches_from == PatchesFrom::Start;
    let refusals = [
        (
            config.past > 0,
            "it has past covariates, which are channels that it does not forecast",
            "no --past",
        ),
        (config.end_padding, "it repeats the last value of a context", "--end-padding false"),
        (config.revin && config.revin_affine, "it has an affine map of each channel", "--revin-affine false"),
        (config.residual_attention, "it adds up attention scores", "--residual-attention false"),
        (config.norm == NormKind::Rms, "it normalises by the root mean square", "--norm batch"),
        (
            from_start && context.saturating_sub(patch) % stride.max(1) != 0,
            "it cuts patches from the start of a context that they do not fill",
            "--patches-from end",
        ),
        (context <= patch, "its context is not longer than a patch", "a shorter --patch"),
        (
            config.positions == Positions::Sinusoidal && !config.d_model.is_multiple_of(2),
            "its sines and cosines are not in pairs",
            "an even --d-model",
        ),
        (
            distribution.is_some() && config.individual_head,
            "it forecasts a distribution by a head of its own for each channel",
            "--individual-head false",
        ),
    ];
    if let Some((_, problem, train)) = refusals.iter().find(|(refused, ..)| *refused) {
        return Err(Error::HuggingFace {
            path: path.to_owned(),
            problem: format!("the model cannot be written as Hugging Face's PatchTST: {problem}"),
            fix: format!("train one with {train}"),
        });
    }
    let mut notes = Vec::new();
    if dropout > 0.0 && config.path_dropout == DropoutRate::Same {
        notes.push(format!(
            "path_dropout is {dropout}, for attention, too, whose branch drops twice in refrain; it matters in training alone"
        ));
    }
    if config.head_dropout > 0.0 {
        notes.push(format!(
            "the dropout of {} after the head has no place there; it matters in training alone",
            config.head_dropout
        ));
    }
    if config.individual_head {
        notes.push(
            "share_projection is false: transformers loads such a model, but up to version 5.23 at least it cannot run one"
                .to_owned(),
        );
    }
    let scaling = match (config.revin, config.revin_scale) {
        (false, _) => Value::Null,
        (true, RevinScale::Std) => json!("std"),
        (true, RevinScale::Mean) => json!("mean"),
    };
    let activation = match config.activation {
        FfnActivation::Gelu => "gelu",
        FfnActivation::GeluTanh => "gelu_pytorch_tanh",
        FfnActivation::Relu => "relu",
        FfnActivation::Silu => "silu",
    };
    let pooling = match config.pooling {
        Pooling::Flatten => Value::Null,
        Pooling::Mean | Pooling::Cls => json!("mean"),
        Pooling::Max => json!("max"),
    };
    let options = json!({
        "architectures": [PREDICTION],
        "model_type": "patchtst",
        "torch_dtype": "float32",
        "loss": if distribution.is_some() { "nll" } else { "mse" },
        "distribution_output": STUDENT_T,
        "num_input_channels": config.channels,
        "context_length": context,
        "prediction_length": config.horizon,
        "patch_length": patch,
        "patch_stride": stride,
        "d_model": config.d_model,
        "num_attention_heads": config.heads,
        "num_hidden_layers": config.layers,
        "ffn_dim": config.ffn,
        "attention_dropout": config.attention_dropout,
        "positional_dropout": config.positional_dropout.or(dropout),
        "path_dropout": config.path_dropout.or(dropout),
        "ff_dropout": config.ffn_dropout.or(dropout),
        "head_dropout": config.head_input_dropout,
        "norm_type": if config.norm == NormKind::Batch { "batchnorm" } else { "layernorm" },
        "pre_norm": config.norm_position == NormPosition::Pre,
        "norm_eps": config.norm_eps,
        "activation_function": activation,
        "bias": config.ffn_bias,
        "positional_encoding_type": if config.positions == Positions::Learned { "random" } else { "sincos" },
        "channel_attention": config.channel_attention,
        "scaling": scaling,
        "share_embedding": !config.individual_embedding,
        "use_cls_token": config.pooling == Pooling::Cls,
        "pooling_type": pooling,
        "share_projection": !config.individual_head,
    });
    Ok((options, notes))
}
