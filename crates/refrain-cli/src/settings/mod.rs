//! The settings of a training run: each is declared once and is a flag, a key of the TOML file and a part of
//! presets alike. A flag wins over the file, the file over the preset, the preset over the default.

mod kind;

pub use kind::ModelKind;

use std::fs::File;
use std::io::Read;
use std::path::Path;

use clap::ValueEnum;
use refrain_forecast::data::panel::{Change, FoldRule, LabelRule, PanelOptions};
use refrain_forecast::data::series::{MaxGap, SplitRule};
use refrain_forecast::models::cross_asset::CrossAssetConfig;
use refrain_forecast::models::patchtst::{FfnActivation, NormKind, NormPosition, PatchTstConfig, Positions};
use refrain_forecast::tasks::classification::ClassWeights;
use refrain_forecast::training::{LrSchedule, TrainingConfig};
use serde::Deserialize;
use serde::de::IntoDeserializer;
use serde::de::value::{Error as ValueError, StrDeserializer};

use crate::cli::Precision;
use crate::error::{Error, Result};

macro_rules! settings {
    ($($(#[$attribute:meta])* $name:ident: $type:ty = $default:expr;)*) => {
        /// What the user set.
        #[derive(Debug, Clone, Default, PartialEq, clap::Args, serde::Serialize, serde::Deserialize)]
        #[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
        pub struct Settings {
            $(
                $(#[$attribute])*
                #[serde(skip_serializing_if = "Option::is_none")]
                pub $name: Option<$type>,
            )*
        }

        /// Every setting with its value.
        #[derive(Debug, Clone, PartialEq)]
        pub struct Complete {
            $(pub $name: $type,)*
        }

        impl Settings {
            /// These, and `base` where nothing is set.
            pub fn or(self, base: Settings) -> Settings {
                Settings { $($name: self.$name.or(base.$name),)* }
            }

            /// These, and the defaults where nothing is set.
            pub fn complete(self) -> Complete {
                Complete { $($name: self.$name.unwrap_or_else(|| $default),)* }
            }

            /// The defaults.
            pub fn defaults() -> Settings {
                Settings { $($name: Some($default),)* }
            }
        }
    };
}

settings! {
    /// What is trained: patchtst forecasts series, cross-asset classifies the sources of a panel
    #[arg(long, value_name = "NAME", value_parser = named::<ModelKind>)]
    model: ModelKind = ModelKind::Patchtst;
    /// The series or panel: `nyc-weather` (bundled), a CSV file, or - (standard input)
    #[arg(long, value_name = "NAME|FILE", help_heading = "Data")]
    data: String = refrain_forecast::data::NYC_WEATHER.to_owned();
    /// Longest gap that is filled across, in rows, or `season`; windows or moments that would need more are left out
    #[arg(long, value_name = "ROWS", help_heading = "Data")]
    max_gap: MaxGap = MaxGap::Season;
    /// Refuse a series with gaps or missing values instead of filling them
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", help_heading = "Series (patchtst)")]
    strict: bool = false;
    /// How rows are split in time: `ett` (12, 4, 4 months of 30 days) or fractions such as `0.7,0.1,0.2`
    #[arg(long, value_name = "RULE", value_parser = split_rule, help_heading = "Series (patchtst)")]
    #[serde(deserialize_with = "split_from_text", serialize_with = "split_to_text")]
    split: SplitRule = SplitRule::default();
    /// Rows that a forecast is made from
    #[arg(long, value_name = "ROWS", help_heading = "Series (patchtst)")]
    context: usize = 336;
    /// Rows of a forecast
    #[arg(long, value_name = "ROWS", help_heading = "Series (patchtst)")]
    horizon: usize = 96;
    /// Rows of a season, for the seasonal naive forecast; 0: a day of hours, a week of days, ...
    #[arg(long, value_name = "ROWS", help_heading = "Series (patchtst)")]
    season: usize = 0;

    /// Rows of a patch
    #[arg(long, value_name = "ROWS", help_heading = "PatchTST")]
    patch: usize = 24;
    /// Rows from one patch to the next
    #[arg(long, value_name = "ROWS", help_heading = "PatchTST")]
    stride: usize = 24;
    /// Repeat the last value after the context for one patch more
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", help_heading = "PatchTST")]
    end_padding: bool = true;
    /// Width of the encoder
    #[arg(long, value_name = "N", help_heading = "Model")]
    d_model: usize = 64;
    /// Attention heads; they divide the width
    #[arg(long, value_name = "N", help_heading = "Model")]
    heads: usize = 4;
    /// Encoder layers
    #[arg(long, value_name = "N", help_heading = "Model")]
    layers: usize = 2;
    /// Width of the feed-forward network
    #[arg(long, value_name = "N", help_heading = "Model")]
    ffn: usize = 128;
    /// Dropout of embedding, projections, feed-forward network and residual branches
    #[arg(long, value_name = "P", help_heading = "Model")]
    dropout: f64 = 0.2;
    /// Dropout of the attention weights
    #[arg(long, value_name = "P", help_heading = "PatchTST")]
    attention_dropout: f64 = 0.0;
    /// Dropout of the head's output
    #[arg(long, value_name = "P", help_heading = "PatchTST")]
    head_dropout: f64 = 0.0;
    /// How the encoder normalises: batch or layer
    #[arg(long, value_name = "KIND", value_parser = named::<NormKind>, help_heading = "PatchTST")]
    norm: NormKind = NormKind::Batch;
    /// Where the encoder normalises: pre or post
    #[arg(long, value_name = "PLACE", value_parser = named::<NormPosition>, help_heading = "PatchTST")]
    norm_position: NormPosition = NormPosition::Post;
    /// Activation of the feed-forward network: gelu, gelu-tanh or relu
    #[arg(long, value_name = "NAME", value_parser = named::<FfnActivation>, help_heading = "PatchTST")]
    activation: FfnActivation = FfnActivation::Gelu;
    /// How a patch knows its place: learned or sinusoidal
    #[arg(long, value_name = "KIND", value_parser = named::<Positions>, help_heading = "PatchTST")]
    positions: Positions = Positions::Learned;
    /// Add the attention scores of each layer to those of the next
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", help_heading = "PatchTST")]
    residual_attention: bool = false;
    /// Normalise every window by its own mean and deviation (RevIN)
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", help_heading = "PatchTST")]
    revin: bool = true;
    /// Give every channel a head of its own
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", help_heading = "PatchTST")]
    individual_head: bool = false;

    /// Column that labels are made from where there is no column `label`; goes with --label-horizon and --label-threshold
    #[arg(long, value_name = "NAME", help_heading = "Panel (cross-asset)")]
    price: String = "temp".to_owned();
    /// Rows from a moment to that at which its outcome is looked up
    #[arg(long, value_name = "ROWS", help_heading = "Panel (cross-asset)")]
    label_horizon: usize = 6;
    /// A change of at most so much is flat
    #[arg(long, value_name = "CHANGE", help_heading = "Panel (cross-asset)")]
    label_threshold: f64 = 2.0;
    /// How a change is measured: difference, or relative to the price
    #[arg(long, value_name = "KIND", value_parser = named::<Change>, help_heading = "Panel (cross-asset)")]
    label_change: Change = Change::Difference;
    /// Chronological folds, each with a model of its own
    #[arg(long, value_name = "N", help_heading = "Panel (cross-asset)")]
    folds: usize = 3;
    /// Share of all rows that a fold tests on
    #[arg(long, value_name = "SHARE", help_heading = "Panel (cross-asset)")]
    test_share: f64 = 0.1;
    /// Share of all rows that a fold validates on
    #[arg(long, value_name = "SHARE", help_heading = "Panel (cross-asset)")]
    validation_share: f64 = 0.1;
    /// Rows left out before validation and test parts
    #[arg(long, value_name = "ROWS", help_heading = "Panel (cross-asset)")]
    embargo: usize = 24;
    /// How labels count: none, or balanced (rare classes as much as frequent ones)
    #[arg(long, value_name = "KIND", value_parser = named::<ClassWeights>, help_heading = "Panel (cross-asset)")]
    class_weights: ClassWeights = ClassWeights::Balanced;
    /// What the cosines of queries and keys are multiplied by at first
    #[arg(long, value_name = "N", help_heading = "Panel (cross-asset)")]
    temperature: f64 = 10.0;

    /// Most passes over the training samples
    #[arg(long, value_name = "N", help_heading = "Training")]
    epochs: usize = 6;
    /// Samples a step: windows of all channels, or moments of all sources
    #[arg(long, value_name = "N", help_heading = "Training")]
    batch_size: usize = 64;
    /// Micro-batches that a step is cut into, their gradients added up, to save memory
    #[arg(long, value_name = "N", help_heading = "Training")]
    accumulate: usize = 1;
    /// How matrix products are computed: f32; tf32 (on a GPU); bf16 (mixed precision: activations are bf16, too)
    #[arg(long, value_name = "NAME", value_parser = named::<Precision>, help_heading = "Training")]
    precision: Precision = Precision::F32;
    /// The highest learning rate
    #[arg(long, value_name = "RATE", help_heading = "Training")]
    lr: f64 = 1e-3;
    /// How the learning rate changes: constant, cosine or one-cycle
    #[arg(long, value_name = "NAME", value_parser = named::<LrSchedule>, help_heading = "Training")]
    schedule: LrSchedule = LrSchedule::OneCycle;
    /// Decoupled weight decay of AdamW
    #[arg(long, value_name = "RATE", help_heading = "Training")]
    weight_decay: f64 = 0.01;
    /// Clip the global gradient norm to this; 0 clips nothing
    #[arg(long, value_name = "NORM", help_heading = "Training")]
    clip: f64 = 1.0;
    /// Stop after so many epochs without a lower validation error
    #[arg(long, value_name = "EPOCHS", help_heading = "Training")]
    patience: usize = 5;
    /// Seed of the weights, the order of the samples and dropout
    #[arg(long, value_name = "N", help_heading = "Training")]
    seed: u64 = 42;
}

/// Settings that have a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Preset {
    /// ETTh1 with the settings of the paper (Nie et al., ICLR 2023); needs --data ETTh1.csv
    Etth1,
}

impl Preset {
    fn settings(self) -> Settings {
        match self {
            Preset::Etth1 => Settings {
                split: Some(SplitRule::Ett),
                context: Some(336),
                horizon: Some(96),
                patch: Some(16),
                stride: Some(8),
                end_padding: Some(true),
                d_model: Some(16),
                heads: Some(4),
                layers: Some(3),
                ffn: Some(128),
                dropout: Some(0.3),
                norm: Some(NormKind::Batch),
                norm_position: Some(NormPosition::Post),
                activation: Some(FfnActivation::Gelu),
                residual_attention: Some(true),
                revin: Some(true),
                batch_size: Some(128),
                lr: Some(1e-4),
                schedule: Some(LrSchedule::Constant),
                weight_decay: Some(0.0),
                clip: Some(0.0),
                epochs: Some(30),
                patience: Some(30),
                ..Settings::default()
            },
        }
    }
}

impl Settings {
    /// Every setting from flags, file, preset and defaults.
    pub fn resolve(flags: Settings, file: Option<&Path>, preset: Option<Preset>) -> Result<Complete> {
        let file = file.map(read_toml).transpose()?.unwrap_or_default();
        let set = flags.or(file);
        if preset == Some(Preset::Etth1) && set.data.is_none() {
            return Err(Error::usage(
                "the preset etth1 needs its series, which is not bundled",
                "download ETTh1.csv of https://github.com/zhouhaoyi/ETDataset and pass it with --data",
            ));
        }
        let set = set.or(preset.map(Preset::settings).unwrap_or_default());
        let kind = set.model.unwrap_or(ModelKind::Patchtst);
        set.check_kind(kind)?;
        if set.price.is_some() && (set.label_horizon.is_none() || set.label_threshold.is_none()) {
            return Err(Error::usage(
                "--price alone does not say what is up, down and flat: --label-horizon and --label-threshold go with it",
                "say by --label-horizon how many rows on, and by --label-threshold from which change",
            ));
        }
        Ok(match kind {
            ModelKind::Patchtst => set.complete(),
            ModelKind::CrossAsset => set.or(Settings::of_cross_asset()).complete(),
        })
    }
}

impl Complete {
    /// The PatchTST for so many channels.
    pub fn patchtst(&self, channels: usize) -> PatchTstConfig {
        PatchTstConfig {
            channels,
            context: self.context,
            horizon: self.horizon,
            patch: self.patch,
            stride: self.stride,
            end_padding: self.end_padding,
            d_model: self.d_model,
            heads: self.heads,
            layers: self.layers,
            ffn: self.ffn,
            dropout: self.dropout,
            attention_dropout: self.attention_dropout,
            head_dropout: self.head_dropout,
            norm: self.norm,
            norm_position: self.norm_position,
            activation: self.activation,
            positions: self.positions,
            residual_attention: self.residual_attention,
            revin: self.revin,
            individual_head: self.individual_head,
        }
    }

    /// The cross-asset model for so many sources and features.
    pub fn cross_asset(&self, sources: usize, features: usize) -> CrossAssetConfig {
        CrossAssetConfig {
            sources,
            features,
            d_model: self.d_model,
            heads: self.heads,
            layers: self.layers,
            ffn: self.ffn,
            dropout: self.dropout,
            temperature: self.temperature,
        }
    }

    /// How a panel is read.
    pub fn panel(&self) -> PanelOptions {
        let rule = LabelRule {
            horizon: self.label_horizon,
            threshold: self.label_threshold,
            change: self.label_change,
        };
        PanelOptions { price: self.price.clone(), rule, max_gap: self.max_gap }
    }

    /// How a panel is cut.
    pub fn fold_rule(&self) -> FoldRule {
        FoldRule {
            folds: self.folds,
            test: self.test_share,
            validation: self.validation_share,
            embargo: self.embargo,
        }
    }

    /// How it is trained.
    pub fn training(&self) -> TrainingConfig {
        TrainingConfig {
            epochs: self.epochs,
            batch_size: self.batch_size,
            accumulate: self.accumulate,
            lr: self.lr,
            schedule: self.schedule,
            weight_decay: self.weight_decay,
            clip: self.clip,
            patience: self.patience,
            seed: self.seed,
        }
    }
}

fn read_toml(path: &Path) -> Result<Settings> {
    /// A device such as /dev/zero has no end.
    const LONGEST: u64 = 1 << 20;
    let mut text = String::new();
    let file = File::open(path).map_err(|source| Error::read(path, source))?;
    file.take(LONGEST + 1).read_to_string(&mut text).map_err(|source| Error::read(path, source))?;
    if text.len() as u64 > LONGEST {
        let error = format!("it is larger than {LONGEST} bytes");
        return Err(Error::TomlSyntax { path: path.to_owned(), error });
    }
    toml::from_str(&text)
        .map_err(|error| Error::TomlSyntax { path: path.to_owned(), error: error.to_string() })
}

/// A value by its serde name, with serde's message naming the alternatives.
fn named<T: for<'a> Deserialize<'a>>(text: &str) -> Result<T, String> {
    let text: StrDeserializer<'_, ValueError> = text.into_deserializer();
    T::deserialize(text).map_err(|error| error.to_string())
}

fn split_rule(text: &str) -> Result<SplitRule, String> {
    if text == "ett" {
        return Ok(SplitRule::Ett);
    }
    let parts: Vec<f64> =
        text.split(',').map(|part| part.trim().parse()).collect::<Result<_, _>>().unwrap_or_default();
    match parts[..] {
        [train, validation, test] => Ok(SplitRule::Fractions { train, validation, test }),
        _ => Err(format!("{text:?} is neither `ett` nor three fractions such as `0.7,0.1,0.2`")),
    }
}

fn split_from_text<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<SplitRule>, D::Error> {
    split_rule(&String::deserialize(from)?).map(Some).map_err(serde::de::Error::custom)
}

fn split_to_text<S: serde::Serializer>(rule: &Option<SplitRule>, to: S) -> Result<S::Ok, S::Error> {
    match rule {
        Some(SplitRule::Ett) => to.serialize_str("ett"),
        Some(SplitRule::Fractions { train, validation, test }) => {
            to.serialize_str(&format!("{train},{validation},{test}"))
        }
        None => to.serialize_none(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_win_over_the_file_over_the_preset_over_the_default() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(
            &file,
            "data = 'a.csv'\nepochs = 3\nlr = 0.5\nnorm = 'layer'\nsplit = '0.5,0.2,0.3'\n",
        )
        .unwrap();
        let flags = Settings { lr: Some(0.25), ..Settings::default() };
        let complete = Settings::resolve(flags, Some(file.path()), Some(Preset::Etth1)).unwrap();
        assert_eq!((complete.lr, complete.epochs, complete.d_model, complete.seed), (0.25, 3, 16, 42));
        assert_eq!(complete.norm, NormKind::Layer);
        assert_eq!(complete.split, SplitRule::Fractions { train: 0.5, validation: 0.2, test: 0.3 });
        let text = toml::to_string(&Settings::defaults()).unwrap();
        assert_eq!(toml::from_str::<Settings>(&text).unwrap(), Settings::defaults());
    }

    #[test]
    fn a_wrong_file_is_told_with_line_and_key() {
        let file = tempfile::NamedTempFile::new().unwrap();
        for (text, expected) in [
            ("epoch = 3", "unknown field `epoch`"),
            ("epochs = 'many'", "invalid type"),
            ("norm = 'group'", "unknown variant `group`"),
            ("split = 'half'", "neither `ett`"),
            ("lr = ", "TOML parse error at line 1"),
        ] {
            std::fs::write(&file, text).unwrap();
            let message =
                Settings::resolve(Settings::default(), Some(file.path()), None).unwrap_err().to_string();
            assert!(message.contains(expected) && message.contains("line 1"), "{message}");
        }
    }

    #[test]
    fn a_preset_without_its_series_says_where_it_is() {
        let error = Settings::resolve(Settings::default(), None, Some(Preset::Etth1)).unwrap_err();
        assert!(error.to_string().contains("--data"), "{error}");
    }
}
