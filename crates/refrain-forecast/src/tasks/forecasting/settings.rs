//! What a user can choose of a series that is to be forecast, and of the forecast.

use super::Levels;
use crate::data::series::SplitRule;
use crate::settings::settings;

settings! {
    /// How a series is read and cut into windows.
    pub struct SeriesSettings {
        /// Refuse a series with gaps or missing values instead of filling them.
        pub strict: bool = false, "BOOL";
        /// How to split the rows in time: fractions such as `0.7,0.1,0.2`, or `ett` (12, 4 and 4 months of 30 days).
        pub split: SplitRule = SplitRule::default(), "RULE";
        /// Rows that the model sees before a forecast.
        pub context: usize = 336, "ROWS";
        /// Rows of a forecast.
        pub horizon: usize = 96, "ROWS";
        /// Rows of a season, for the seasonal naive forecast; 0 infers it (24 for hours, 7 for days, ...)
        pub season: usize = 0, "ROWS";
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
