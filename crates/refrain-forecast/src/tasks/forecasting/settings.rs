//! What a user can choose of a series that is to be forecast, and of the forecast.

use super::Levels;
use crate::data::dialect::Dialect;
use crate::data::series::{
    CalendarFeature, CovariateColumns, Layout, LongColumns, ReadOptions, Scaling, SplitRule, TimeStep,
};
use crate::settings::{CommaList, settings};
use serde::{Deserialize, Serialize};

settings! {
    /// How a series is read and cut into windows.
    pub struct SeriesSettings {
        /// Refuse a series with gaps or missing values instead of filling them.
        pub strict: bool = false, "BOOL";
        /// How the ids of a long file become series: independent (each has its own start, length and scale), grid (all are channels of one table), or auto (independent if they do not share start and end).
        ///
        /// A wide file is one table, unless `independent` is asked for.
        pub layout: Layout = Layout::Auto, "KIND";
        /// Column of ids in a long file.
        pub id_column: String = "unique_id".to_owned(), "NAME";
        /// Column of time stamps in a long file, or in a wide one whose time column has no usual name.
        pub time_column: String = "ds".to_owned(), "NAME";
        /// Column of a long file that is forecast.
        pub target: String = "y".to_owned(), "NAME";
        /// Columns that are known only up to the present: inputs that are not forecast.
        ///
        /// The models that take them say so; others refuse them.
        pub past: CommaList<String> = CommaList::default(), "COLUMN,...";
        /// Columns that are known ahead, such as prices, plans or holidays; the file gives them for the rows to forecast, too.
        pub future: CommaList<String> = CommaList::default(), "COLUMN,...";
        /// Columns of a long file with one value for each id.
        pub r#static: CommaList<String> = CommaList::default(), "COLUMN,...";
        /// Features of the time stamps, which are known ahead: hour, weekday, month, day-of-year.
        pub calendar: CommaList<CalendarFeature> = CommaList::default(), "NAME,...";
        /// How values are scaled before the model sees them: standard (each series by mean and deviation of its training part) or none.
        pub scaling: Scaling = Scaling::Standard, "KIND";
        /// How to split each series in time: fractions such as `0.7,0.1,0.2`; rows of validation and test such as `24,24`; or `ett` (12, 4 and 4 months of 30 days).
        pub split: SplitRule = SplitRule::default(), "RULE";
        /// Rows that the model sees before a forecast.
        pub context: usize = 336, "ROWS";
        /// Rows of a forecast.
        pub horizon: usize = 96, "ROWS";
        /// Rows of a season, for the seasonal naive forecast; 0 infers it (24 for hours, 7 for days, ...)
        pub season: usize = 0, "ROWS";
    }
}

impl SeriesSettings {
    /// How a file in this dialect is read. `step` is its calendar, if it is known.
    pub fn read_options(&self, step: Option<TimeStep>, dialect: Dialect) -> ReadOptions {
        let SeriesSettings { strict, id_column, time_column, target, past, future, calendar, .. } = self;
        let (id, time, value) = (id_column.clone(), time_column.clone(), target.clone());
        let covariates = CovariateColumns {
            past: past.clone(),
            future: future.clone(),
            statics: self.r#static.clone(),
            calendar: calendar.clone(),
        };
        ReadOptions { strict: *strict, step, columns: LongColumns { id, time, value }, covariates, dialect }
    }
}

/// The part of a model that training leaves as it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Freeze {
    /// Nothing.
    #[default]
    None,
    /// All but the head, so that only the head is trained.
    Encoder,
}

/// What training teaches a model.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Objective {
    /// To forecast.
    #[default]
    Forecast,
    /// To fill in hidden patches.
    Pretrain,
}

settings! {
    /// What a model learns beside a loss, and which of its weights.
    pub struct TuningSettings {
        /// The part of the initial weights (--init) that training keeps: none, or encoder (all but the head).
        ///
        /// Batch norms go on with their running statistics.
        pub freeze: Freeze = Freeze::None, "PART";
        /// What is learned: forecast, or pretrain (PatchTST fills in patches that are hidden from it; `--init` with that run then begins with its encoder).
        pub task: Objective = Objective::Forecast, "NAME";
        /// The share of the patches that pretraining hides.
        pub mask_ratio: f64 = 0.4, "SHARE";
    }
}

settings! {
    /// The intervals around a forecast.
    #[derive(Default)]
    pub struct IntervalSettings {
        /// Intervals around the forecast: the percentages of the true values that should lie in them, such as `80,90`; or `none`.
        pub levels: Levels = Levels::NONE, "PERCENT";
        /// Calibrate the intervals on the second half of the validation part, so that they cover what they promise; early stopping uses the first half.
        ///
        /// This is split conformal prediction. It also gives intervals to a model that has learned none.
        pub calibrate: bool = false, "BOOL";
        /// Let calibrated intervals follow their own coverage where forecasts roll (`evaluate`, and `cross-validate` of a table), by this step size, such as 0.01; 0 does not.
        ///
        /// This is adaptive conformal inference.
        #[serde(default)]
        pub adaptive: f64 = 0.0, "RATE";
    }
}
