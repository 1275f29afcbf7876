//! Losses of forecasts: what training minimises.

use crate::settings::{Setting, Values, assemble};
use crate::{Error, Result};
use refrain::Tensor;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A loss is a function of each error, `forecast - truth`, and the mean of it over all of them.
trait ErrorLoss {
    /// Its name for people, such as `MSE`.
    fn title(&self) -> &'static str;

    /// The mean over all elements, `[]`, by the engine's operation.
    fn mean(&self, forecast: &Tensor, truth: &Tensor) -> Result<Tensor>;

    /// The function of each error, on the device.
    fn of_errors(&self, errors: &Tensor) -> Result<Tensor>;

    /// The function of one error, on the host.
    fn of_error(&self, error: f64) -> f64;

    /// Whether there is such a loss.
    ///
    /// # Errors
    /// [`Error::Training`], which says what to change.
    fn validate(&self) -> Result<()> {
        Ok(())
    }
}

/// Makes [`Loss`] of a line for each loss: its name on the command line and in run folders, its file, and its settings.
macro_rules! losses {
    ($($name:literal $module:ident::$type:ident;)*) => {
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

        /// Every loss: its name and its settings.
        fn list() -> Vec<(&'static str, Vec<Setting>)> {
            vec![$(($name, $type::settings())),*]
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
}

/// The mean squared error.
impl Default for Loss {
    fn default() -> Loss {
        Loss::Mse(Mse {})
    }
}

impl Loss {
    /// What a user can choose: `loss`, and the settings of each loss under names that begin with that of the loss.
    pub fn settings() -> Vec<Setting> {
        let names: Vec<&str> = list().iter().map(|(name, _)| *name).collect();
        let about = format!("The loss that training minimises: {}", names.join(", "));
        let of_each = list().into_iter().flat_map(|(name, own)| own.into_iter().map(|own| own.of(name)));
        std::iter::once(Setting::new("loss", &[&about], "NAME", Name::Mse)).chain(of_each).collect()
    }

    /// The loss of settings: those of `values`, else the defaults.
    ///
    /// # Errors
    /// [`Error::Setting`] for a value of the wrong type, and a setting of another loss.
    pub fn from_settings(values: &Values) -> Result<Loss> {
        let chosen = values.get("loss").and_then(Value::as_str).unwrap_or(Loss::default().name()).to_owned();
        let mut own = (Vec::new(), Values::new());
        for (name, settings) in list() {
            for setting in settings {
                let full = setting.clone().of(name);
                let value = values.get(full.name());
                if name == chosen {
                    let wrong = |problem| Error::Setting { name: full.name().to_owned(), problem };
                    value.map_or(Ok(()), |value| setting.check(value)).map_err(wrong)?;
                    own.1.extend(value.map(|value| (setting.name().to_owned(), value.clone())));
                    own.0.push(setting);
                } else if value.is_some() {
                    let problem = format!("it is a setting of the loss {name}, and the loss is {chosen}");
                    return Err(Error::Setting { name: full.name().to_owned(), problem });
                }
            }
        }
        let loss: Loss =
            assemble(&own.0, &own.1, [("name".to_owned(), chosen.into())].into_iter().collect())?;
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

    /// The mean loss, `[]`, of forecasts beside what came true, both of one shape. With `weights` of that shape it is the
    /// weighted mean: a value that was filled has the weight 0, and does not count.
    ///
    /// # Errors
    /// [`Error::Engine`] if shapes, dtypes or devices do not fit, or the device fails.
    pub fn mean(&self, forecast: &Tensor, truth: &Tensor, weights: Option<&Tensor>) -> Result<Tensor> {
        let Some(weights) = weights else { return self.inner().mean(forecast, truth) };
        let errors = forecast.to_dtype(truth.dtype())?.sub(truth)?;
        Ok(self.inner().of_errors(&errors)?.mul(weights)?.sum(())?.div(&weights.sum(())?)?)
    }

    /// The loss of one error.
    pub(super) fn of_error(&self, error: f64) -> f64 {
        self.inner().of_error(error)
    }
}

#[cfg(test)]
mod tests;
