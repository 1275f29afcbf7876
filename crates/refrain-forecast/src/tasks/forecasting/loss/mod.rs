//! Losses of forecasts: what training minimises.

use super::{IntervalSettings, Levels};
use crate::models::Distribution;
use crate::settings::{Setting, Values, assemble};
use crate::{Error, Result};
use refrain::Tensor;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A loss is a function of each error, `forecast - truth`, and the mean of it over all of them.
///
/// A loss with [levels](ErrorLoss::levels) gets several forecasts of each true value, one for each quantile of the levels. Then
/// forecasts and errors are `[.., quantiles, horizon]`, and the truth is `[.., 1, horizon]`.
trait ErrorLoss {
    /// Its name for people, such as `MSE`.
    fn title(&self) -> &'static str;

    /// The levels of the intervals that a model learns to forecast.
    fn levels(&self) -> &Levels {
        const { &Levels::NONE }
    }

    /// The distribution that a model forecasts in each row, if it is one.
    fn distribution(&self) -> Option<Distribution> {
        None
    }

    /// How many values a model forecasts of each row and channel.
    fn values(&self) -> usize {
        self.distribution().map_or(self.levels().values(), Distribution::values)
    }

    /// How many losses each true value has: as many as values, unless they are one loss together.
    fn terms(&self) -> usize {
        self.values()
    }

    /// The forecast itself, `[.., 1, horizon]`, of all values `[.., values, horizon]`: the middle one of quantiles.
    fn median(&self, forecasts: &Tensor) -> Result<Tensor> {
        match self.values() {
            1 => Ok(forecasts.clone()),
            values => Ok(forecasts.sort(-2, false)?.0.narrow(-2, values / 2, 1)?),
        }
    }

    /// The mean over all elements, `[]`, by the engine's operation.
    fn mean(&self, forecast: &Tensor, truth: &Tensor) -> Result<Tensor>;

    /// The function of each error, on the device; of several values that are one loss together, `[.., 1, horizon]`.
    fn of_errors(&self, errors: &Tensor) -> Result<Tensor>;

    /// Whether there is such a loss.
    ///
    /// # Errors
    /// [`Error::Training`], which says what to change.
    fn validate(&self) -> Result<()> {
        Ok(())
    }
}

/// What [`Loss`] knows of a loss before it is made.
struct Listed {
    name: &'static str,
    /// Its own settings. Their names on the command line begin with that of the loss.
    settings: Vec<Setting>,
    /// The names of the [`IntervalSettings`] that it shares.
    shares: &'static [&'static str],
}

/// Makes [`Loss`] of a line for each loss: its name on the command line and in run folders, its file, its settings, and the
/// names of the interval settings that it shares.
macro_rules! losses {
    ($($name:literal $module:ident::$type:ident $(, $shared:literal)*;)*) => {
        $(mod $module;)*
        $(pub use $module::$type;)*

        /// The loss of a forecast, whichever it is. In a run folder its settings have its `name`.
        ///
        /// ```
        /// use refrain::{Device, Tensor};
        /// use refrain_forecast::tasks::forecasting::loss::{Huber, Loss};
        ///
        /// let row = |values: &[f32]| Tensor::from_slice(values, [1, 1, 3], &Device::cpu());
        /// let (forecast, truth, observed) = (row(&[1.0, 5.0, 9.0])?, row(&[0.5, 2.0, 0.0])?, row(&[1.0, 1.0, 0.0])?);
        /// let loss = Loss::Huber(Huber { delta: 1.0 });
        /// let mean = loss.mean(&forecast, &truth, Some(&observed))?.to_scalar::<f32>()?;
        /// assert_eq!(mean, (0.125 + 2.5) / 2.0); // the last value was not observed
        /// # Ok::<(), refrain_forecast::Error>(())
        /// ```
        #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
        #[serde(tag = "name")]
        pub enum Loss {
            $(
                #[doc = concat!("`", $name, "`.")]
                #[serde(rename = $name)]
                $type($type),
            )*
        }

        /// The name of a loss.
        #[derive(Debug, Clone, Copy, Serialize, Deserialize)]
        enum Name {
            $(
                #[serde(rename = $name)]
                $type,
            )*
        }

        /// Every loss.
        fn list() -> Vec<Listed> {
            vec![$(Listed { name: $name, settings: $type::settings(), shares: &[$($shared),*] }),*]
        }

        impl Loss {
            /// The name on the command line and in run folders.
            pub fn name(&self) -> &'static str {
                match self {
                    $(Loss::$type(_) => $name,)*
                }
            }

            fn inner(&self) -> &dyn ErrorLoss {
                match self {
                    $(Loss::$type(loss) => loss,)*
                }
            }
        }
    };
}

losses! {
    "mse" mse::Mse;
    "mae" mae::Mae;
    "huber" huber::Huber;
    "quantile" quantile::Quantile, "levels";
    "student-t" student_t::StudentT, "levels";
}

pub(super) use student_t::shape_of as student_t_shape;

/// The mean squared error.
impl Default for Loss {
    fn default() -> Loss {
        Loss::Mse(Mse {})
    }
}

impl Loss {
    /// What a user can choose: `loss`, and the settings of each loss under names that begin with that of the loss.
    pub fn settings() -> Vec<Setting> {
        let all = list();
        let names: Vec<&str> = all.iter().map(|loss| loss.name).collect();
        let about = format!("The loss that training minimises: {}", names.join(", "));
        let of_each =
            all.into_iter().flat_map(|loss| loss.settings.into_iter().map(move |own| own.of(loss.name)));
        std::iter::once(Setting::new("loss", &[&about], "NAME", Name::Mse)).chain(of_each).collect()
    }

    /// The loss of settings: those of `values`, else the defaults.
    ///
    /// # Errors
    /// [`Error::Setting`] for a value of the wrong type, and a setting of another loss; [`Error::Training`] for settings that
    /// are none of a loss.
    pub fn from_settings(values: &Values) -> Result<Loss> {
        let chosen = values.get("loss").and_then(Value::as_str).unwrap_or(Loss::default().name()).to_owned();
        let (mut own, mut set) = (Vec::new(), Values::new());
        let mut beside: Values = [("name".to_owned(), chosen.as_str().into())].into_iter().collect();
        for loss in list() {
            for setting in loss.settings {
                let full = setting.clone().of(loss.name);
                let value = values.get(full.name());
                if loss.name == chosen {
                    let wrong = |problem| Error::Setting { name: full.name().to_owned(), problem };
                    value.map_or(Ok(()), |value| setting.check(value)).map_err(wrong)?;
                    set.extend(value.map(|value| (setting.name().to_owned(), value.clone())));
                    own.push(setting);
                } else if value.is_some() {
                    let problem =
                        format!("it is a setting of the loss {}, and the loss is {chosen}", loss.name);
                    return Err(Error::Setting { name: full.name().to_owned(), problem });
                }
            }
            if loss.name == chosen {
                let shared = |setting: &Setting| loss.shares.contains(&setting.name());
                for setting in IntervalSettings::settings().into_iter().filter(shared) {
                    let value = values.get(setting.name()).unwrap_or(setting.default());
                    beside.insert(setting.name().to_owned(), value.clone());
                }
            }
        }
        let loss: Loss = assemble(&own, &set, beside)?;
        loss.validate()?;
        Ok(loss)
    }

    /// Whether there is such a loss.
    ///
    /// # Errors
    /// [`Error::Training`], which says what to change.
    pub fn validate(&self) -> Result<()> {
        self.inner().validate()
    }

    /// The name for people, such as `MSE`.
    pub fn title(&self) -> &'static str {
        self.inner().title()
    }

    /// The levels of the intervals that a model learns to forecast by this loss.
    pub fn levels(&self) -> &Levels {
        self.inner().levels()
    }

    /// How many values a model forecasts of each row and channel: one, one for each quantile of the levels, or the parameters of a
    /// distribution.
    pub fn values(&self) -> usize {
        self.inner().values()
    }

    /// The distribution that a model forecasts in each row for this loss, if it is one.
    pub fn distribution(&self) -> Option<Distribution> {
        self.inner().distribution()
    }

    /// How many losses each true value has.
    pub(super) fn terms(&self) -> usize {
        self.inner().terms()
    }

    /// The forecast itself, `[.., 1, horizon]`, of all values `[.., values, horizon]`.
    pub(super) fn median(&self, forecasts: &Tensor) -> Result<Tensor> {
        self.inner().median(forecasts)
    }

    /// The mean loss, `[]`, of forecasts beside what came true. Both have the shape `[.., horizon]`; if the loss has several
    /// [`values`](Loss::values), forecasts are `[.., values * horizon]`, quantile after quantile. With `weights` of the shape
    /// of the truth it is the weighted mean: a value that was filled has the weight 0, and does not count.
    ///
    /// # Errors
    /// [`Error::Engine`] if shapes, dtypes or devices do not fit, or the device fails.
    pub fn mean(&self, forecast: &Tensor, truth: &Tensor, weights: Option<&Tensor>) -> Result<Tensor> {
        if self.values() == 1 {
            let Some(weights) = weights else { return self.inner().mean(forecast, truth) };
            let errors = forecast.to_dtype(truth.dtype())?.sub(truth)?;
            return Ok(self.inner().of_errors(&errors)?.mul(weights)?.sum(())?.div(&weights.sum(())?)?);
        }
        let mut dims = truth.dims().to_vec();
        dims.insert(dims.len().saturating_sub(1), self.values());
        let forecast = forecast.to_dtype(truth.dtype())?.reshape(dims)?; // [.., values, horizon]
        let truth = truth.unsqueeze(-2)?;
        let Some(weights) = weights else { return self.inner().mean(&forecast, &truth) };
        let losses = self.inner().of_errors(&forecast.sub(&truth)?)?.mul(&weights.unsqueeze(-2)?)?;
        Ok(losses.sum(())?.div(&weights.sum(())?.mul_scalar(self.terms() as f64)?)?)
    }

    /// The loss of each error `forecast - truth`. If there are several [`values`](Loss::values), errors are
    /// `[.., values, horizon]`.
    pub(super) fn of_errors(&self, errors: &Tensor) -> Result<Tensor> {
        self.inner().of_errors(errors)
    }
}

#[cfg(test)]
mod tests;
