//! What can be trained, and the settings that only one kind of model has.

use super::Settings;
use crate::error::{Error, Result};

/// What can be trained.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ModelKind {
    Patchtst,
    CrossAsset,
}

/// The settings that only PatchTST has.
const PATCHTST: [&str; 17] = [
    "strict",
    "split",
    "context",
    "horizon",
    "season",
    "patch",
    "stride",
    "end-padding",
    "attention-dropout",
    "head-dropout",
    "norm",
    "norm-position",
    "activation",
    "positions",
    "residual-attention",
    "revin",
    "individual-head",
];

/// The settings that only cross-asset attention has.
const CROSS_ASSET: [&str; 10] = [
    "price",
    "label-horizon",
    "label-threshold",
    "label-change",
    "folds",
    "test-share",
    "validation-share",
    "embargo",
    "class-weights",
    "temperature",
];

impl Settings {
    /// What cross-asset attention begins with where PatchTST has another default.
    pub fn of_cross_asset() -> Settings {
        Settings {
            d_model: Some(256),
            ffn: Some(1024),
            batch_size: Some(256),
            lr: Some(3e-4),
            patience: Some(3),
            ..Settings::default()
        }
    }

    /// Refuses settings that the model has not.
    pub(super) fn check_kind(&self, kind: ModelKind) -> Result<()> {
        let (foreign, name, of): (&[&str], _, _) = match kind {
            ModelKind::Patchtst => (&CROSS_ASSET, "patchtst", "cross-asset"),
            ModelKind::CrossAsset => (&PATCHTST, "cross-asset", "patchtst"),
        };
        let set = serde_json::to_value(self).map_err(Error::Json)?;
        match foreign.iter().find(|setting| set.get(**setting).is_some()) {
            None => Ok(()),
            Some(setting) => Err(Error::usage(
                format!("{setting} is a setting of {of}, the model is {name}"),
                format!("leave it out, or ask for --model {of}"),
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cross_asset_attention_has_defaults_of_its_own_and_refuses_what_it_has_not() {
        let cross = Settings { model: Some(ModelKind::CrossAsset), ..Settings::default() };
        let resolve = |settings: &Settings| Settings::resolve(settings.clone(), None, None);
        let complete = resolve(&cross).unwrap();
        assert_eq!(
            (complete.d_model, complete.ffn, complete.batch_size, complete.heads),
            (256, 1024, 256, 4)
        );
        let narrow = Settings { d_model: Some(8), ..cross.clone() };
        assert_eq!(resolve(&narrow).unwrap().d_model, 8);
        for (settings, expected) in [
            (Settings { patch: Some(8), ..cross.clone() }, "patch is a setting of patchtst"),
            (Settings { folds: Some(2), ..Settings::default() }, "folds is a setting of cross-asset"),
            (Settings { price: Some("close".to_owned()), ..cross.clone() }, "--price alone"),
        ] {
            let message = resolve(&settings).unwrap_err().to_string();
            assert!(message.contains(expected), "{message}");
        }
        // Every setting is of one model or of both.
        let all = serde_json::to_value(Settings::defaults()).unwrap();
        assert!(PATCHTST.iter().chain(&CROSS_ASSET).all(|name| all.get(*name).is_some()));
    }
}
