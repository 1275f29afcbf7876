//! What a user can choose of a panel whose sources are to be classified.

use super::ClassWeights;
use crate::data::dialect::Dialect;
use crate::data::panel::{Change, FoldRule, LabelRule, PanelOptions};
use crate::data::series::MaxGap;
use crate::settings::settings;

settings! {
    /// How a panel is labelled and cut into folds, and how labels count.
    pub struct PanelSettings {
        /// Column to make labels from if there is no column `label`; needs --label-horizon and --label-threshold.
        pub price: String = "temp".to_owned(), "NAME";
        /// How many rows ahead a label looks.
        pub label_horizon: usize = 6, "ROWS";
        /// Largest change that is still flat.
        pub label_threshold: f64 = 2.0, "CHANGE";
        /// How to measure a change: difference, or relative (to the price).
        pub label_change: Change = Change::Difference, "KIND";
        /// Number of chronological folds; each trains its own model.
        pub folds: usize = 3, "N";
        /// Share of all rows in the test part of a fold.
        pub test_share: f64 = 0.1, "SHARE";
        /// Share of all rows in the validation part of a fold.
        pub validation_share: f64 = 0.1, "SHARE";
        /// Rows left out before each validation part and each test part.
        pub embargo: usize = 24, "ROWS";
        /// Class weights in the loss: none, or balanced (each class has the same total weight).
        pub class_weights: ClassWeights = ClassWeights::Balanced, "KIND";
    }
}

impl PanelSettings {
    /// How a panel in this dialect is read.
    pub fn options(&self, max_gap: MaxGap, dialect: Dialect) -> PanelOptions {
        let rule = LabelRule {
            horizon: self.label_horizon,
            threshold: self.label_threshold,
            change: self.label_change,
        };
        PanelOptions { price: self.price.clone(), rule, max_gap, dialect }
    }

    /// How the panel is cut.
    pub fn fold_rule(&self) -> FoldRule {
        FoldRule {
            folds: self.folds,
            test: self.test_share,
            validation: self.validation_share,
            embargo: self.embargo,
        }
    }
}
