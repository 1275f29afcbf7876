//! The page about a run of a classifier: its panel, its training, and the test errors of each fold.

use refrain_forecast::data::panel::{Class, Panel};
use refrain_forecast::models::ClassifierConfig;

use super::score::{FoldScore, Totals};
use crate::console::{count, number, seconds};
use crate::html::Page;
use crate::run_config::{Classes, RunConfig};

/// A fold that is trained and measured.
pub struct Fold<'a> {
    pub score: &'a FoldScore,
    pub epochs: usize,
    pub best_epoch: usize,
    pub seconds: f64,
    /// The plot of the losses.
    pub losses: &'a str,
}

/// The page, as HTML that needs no network.
pub fn page(
    name: &str,
    config: &RunConfig<Classes>,
    panel: &Panel,
    parameters: usize,
    folds: &[Fold],
) -> String {
    let RunConfig {
        task: Classes { data, model: ClassifierConfig::CrossAsset(model) },
        training,
        precision,
        ..
    } = config;
    let mut page = Page::new(&format!("refrain: {name}"));
    page.heading("Data");
    page.facts(&[
        ("panel", panel.file().to_owned()),
        (
            "time steps",
            format!("{}, {} to {}", count(panel.rows()), panel.time(0), panel.time(panel.rows() - 1)),
        ),
        ("sources", panel.sources().join(", ")),
        ("features", panel.features().join(", ")),
        (
            "folds",
            format!("{}, with an embargo of {} rows between parts", data.folds.folds, data.folds.embargo),
        ),
    ]);
    page.heading("Model and training");
    page.facts(&[
        (
            "model",
            format!("cross-asset, d_model {}, {} heads, {} layers", model.d_model, model.heads, model.layers),
        ),
        ("parameters", count(parameters)),
        ("batch size", training.batch_size.to_string()),
        ("learning rate", training.lr.to_string()),
        ("seed", training.seed.to_string()),
        ("precision", precision.name().to_owned()),
    ]);
    page.heading("Test errors");
    page.paragraph("The share of predicted classes that came true; balanced over the classes; and of always predicting the majority class.");
    let percent = |share: f64| format!("{:.1} %", share * 100.0);
    let header = ["test part of fold", "accuracy", "balanced", "majority", "loss", "class of the majority"];
    let mut rows: Vec<Vec<String>> = folds
        .iter()
        .map(|Fold { score, .. }| {
            let name = format!("{} from {}", score.fold, score.test_from);
            let shares = [score.accuracy, score.balanced_accuracy, score.majority_accuracy].map(percent);
            let more = [number(score.loss), score.majority_class.name().to_owned()];
            std::iter::once(name).chain(shares).chain(more).collect()
        })
        .collect();
    let scores: Vec<&FoldScore> = folds.iter().map(|fold| fold.score).collect();
    let Totals { accuracy, balanced_accuracy, majority_accuracy } = Totals::of(&scores);
    let shares = [accuracy, balanced_accuracy, majority_accuracy].map(percent);
    rows.push(
        std::iter::once("all".to_owned()).chain(shares).chain([String::new(), String::new()]).collect(),
    );
    page.table(&header.map(str::to_owned), &rows);
    for fold in folds {
        page.heading(&format!("Fold {}", fold.score.fold));
        let (epochs, best) = (fold.epochs, fold.best_epoch);
        page.paragraph(&format!("{epochs} epochs in {}; the best is epoch {best}.", seconds(fold.seconds)));
        page.svg(fold.losses);
        let row = |truth: Class| {
            let counts = fold.score.confusion.counts()[truth.index()].iter().map(|&of| count(of));
            std::iter::once(truth.name().to_owned()).chain(counts).collect::<Vec<_>>()
        };
        let header = ["actual class", "predicted up", "predicted down", "predicted flat"].map(str::to_owned);
        page.table(&header, &Class::ALL.map(row));
    }
    page.finish()
}
