//! What a user can choose of a series that is to be forecast, and of the forecast.

use super::Levels;
use crate::data::series::{Layout, LongColumns, ReadOptions, Scaling, SplitRule, TimeStep};
use crate::settings::settings;

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
    /// How the file is read. `step` is its calendar, if it is known.
    pub fn read_options(&self, step: Option<TimeStep>) -> ReadOptions {
        let SeriesSettings { strict, id_column, time_column, target, .. } = self;
        let (id, time, value) = (id_column.clone(), time_column.clone(), target.clone());
        ReadOptions { strict: *strict, step, columns: LongColumns { id, time, value } }
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
    }
}
