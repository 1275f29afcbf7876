//! Settings: what a user can choose for a model, a loss, a task or a training. Each is declared once, where it is used. It is
//! then a flag of the command line and a key of settings files; its help text and default come from the declaration.

mod list;
mod text;

pub use list::CommaList;

use crate::{Error, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

/// Values of settings by name, such as `"batch-size": 64`.
pub type Values = Map<String, Value>;

/// Something that a user can choose.
#[derive(Debug, Clone)]
pub struct Setting {
    name: String,
    help: String,
    value_name: &'static str,
    default: Value,
    read: fn(&str) -> Result<Value, String>,
    check: fn(&Value) -> Result<(), String>,
}

impl Setting {
    /// A setting of type `T`. Its name on the command line is that of the field with dashes; the help text is the first
    /// paragraph of the documentation, which is given line by line.
    pub fn new<T: Serialize + DeserializeOwned>(
        field: &str,
        documentation: &[&str],
        value_name: &'static str,
        default: T,
    ) -> Setting {
        let lines = documentation.iter().map(|line| line.trim());
        let first: Vec<&str> = lines.take_while(|line| !line.is_empty()).collect();
        let first = first.join(" ");
        let help = if first.ends_with("...") { &first } else { first.trim_end_matches('.') };
        Setting {
            // A keyword as a name is `r#static`.
            name: field.trim_start_matches("r#").replace('_', "-"),
            help: help.to_owned(),
            value_name,
            default: serde_json::to_value(default).unwrap_or_default(),
            read: text::read::<T>,
            check: |value| {
                if value.is_null() {
                    return Err("not a finite number".to_owned());
                }
                T::deserialize(value).map(drop).map_err(|error| error.to_string())
            },
        }
    }

    /// Its name on the command line and in settings files, such as `batch-size`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it is for, in a sentence.
    pub fn help(&self) -> &str {
        &self.help
    }

    /// The placeholder for a value in the help text, such as `ROWS`.
    pub fn value_name(&self) -> &'static str {
        self.value_name
    }

    /// Its default value.
    pub fn default(&self) -> &Value {
        &self.default
    }

    /// Whether its value is yes or no.
    pub fn is_switch(&self) -> bool {
        self.default.is_boolean()
    }

    /// The same with another default.
    pub fn with_default(self, default: Value) -> Setting {
        Setting { default, ..self }
    }

    /// The same under a name that begins with that of its owner, such as `huber-delta`.
    pub fn of(self, owner: &str) -> Setting {
        Setting { name: format!("{owner}-{}", self.name), ..self }
    }

    /// Parses a word of a command line.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn read(&self, text: &str) -> Result<Value, String> {
        (self.read)(text)
    }

    /// Checks that a value has the type of the setting.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn check(&self, value: &Value) -> Result<(), String> {
        (self.check)(value)
    }

    /// The field of a configuration that it sets.
    fn field(&self) -> String {
        self.name.replace('-', "_")
    }
}

/// Settings by name, such as those of a paper, as the text of a settings file.
#[derive(Debug, Clone, Copy)]
pub struct Preset {
    /// Its name on the command line.
    pub name: &'static str,
    /// What it is for, in a sentence.
    pub help: &'static str,
    /// The settings, in TOML.
    pub toml: &'static str,
    /// Where to get the data that it is for, if that is not bundled.
    pub data: Option<&'static str>,
}

/// Makes a configuration of fields that are given, and of settings: the value in `values`, otherwise the default.
///
/// # Errors
/// [`Error::Setting`] for a value of the wrong type.
pub fn assemble<T: DeserializeOwned>(settings: &[Setting], values: &Values, beside: Values) -> Result<T> {
    let mut fields = beside;
    for setting in settings {
        let value = values.get(setting.name()).unwrap_or(setting.default());
        let refuse = |problem| Error::Setting { name: setting.name().to_owned(), problem };
        setting.check(value).map_err(refuse)?;
        fields.insert(setting.field(), value.clone());
    }
    let whole =
        |error: serde_json::Error| Error::Setting { name: "settings".to_owned(), problem: error.to_string() };
    T::deserialize(Value::Object(fields)).map_err(whole)
}

/// Declares a configuration: a struct whose fields with a default are settings. The string after the default stands for a
/// value in the help text; the help text is the first paragraph of the field's documentation.
macro_rules! settings {
    (
        $(#[$attribute:meta])*
        pub struct $type:ident {
            $(
                $(#[doc = $doc:literal])*
                $(#[serde($($serde:tt)*)])?
                pub $name:ident: $of:ty $(= $default:expr, $value:literal)?;
            )*
        }
    ) => {
        $(#[$attribute])*
        #[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct $type {
            $(
                $(#[doc = $doc])*
                $(#[serde($($serde)*)])?
                pub $name: $of,
            )*
        }

        impl $type {
            /// What a user can choose of it.
            pub fn settings() -> Vec<$crate::settings::Setting> {
                let all: Vec<Option<$crate::settings::Setting>> = vec![
                    $($crate::settings::setting!($name, $of, [$($doc)*], [$($default, $value)?])),*
                ];
                all.into_iter().flatten().collect()
            }
        }
    };
}

/// A field of [`settings!`]: `None` without a default.
macro_rules! setting {
    ($name:ident, $of:ty, [$($doc:literal)*], []) => {
        None
    };
    ($name:ident, $of:ty, [$($doc:literal)*], [$default:expr, $value:literal]) => {
        Some($crate::settings::Setting::new::<$of>(stringify!($name), &[$($doc),*], $value, $default))
    };
}

pub(crate) use {setting, settings};

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[derive(Debug, Clone, Copy, PartialEq, Serialize, serde::Deserialize)]
    #[serde(rename_all = "kebab-case")]
    pub enum Colour {
        Red,
        DarkBlue,
    }

    settings! {
        /// A configuration.
        pub struct Example {
            /// Given beside.
            pub channels: usize;
            /// Width of the
            /// encoder.
            ///
            /// More about it.
            pub d_model: usize = 64, "N";
            /// Its colour.
            pub colour: Colour = Colour::DarkBlue, "NAME";
            /// Its weight: light, heavy, ...
            pub weight: f64 = 0.5, "KG";
        }
    }

    #[test]
    fn a_declaration_gives_names_help_defaults_and_the_configuration() {
        let settings = Example::settings();
        let told: Vec<_> = settings.iter().map(|s| (s.name(), s.help(), s.default().clone())).collect();
        assert_eq!(
            told,
            [
                ("d-model", "Width of the encoder", json!(64)),
                ("colour", "Its colour", json!("dark-blue")),
                ("weight", "Its weight: light, heavy, ...", json!(0.5)),
            ]
        );
        let values: Values =
            [("d-model".to_owned(), json!(8)), ("other".to_owned(), json!(1))].into_iter().collect();
        let beside = || [("channels".to_owned(), json!(3))].into_iter().collect();
        let expected = Example { channels: 3, d_model: 8, colour: Colour::DarkBlue, weight: 0.5 };
        assert_eq!(assemble::<Example>(&settings, &values, beside()).unwrap(), expected);
        let wrong: Values = [("colour".to_owned(), json!("green"))].into_iter().collect();
        let message = assemble::<Example>(&settings, &wrong, beside()).unwrap_err().to_string();
        assert!(message.contains("colour") && message.contains("`dark-blue`"), "{message}");
    }

    #[test]
    fn words_are_read_by_the_type_of_the_setting() {
        let settings = Example::settings();
        let read = |at: usize, text: &str| settings[at].read(text);
        assert_eq!(
            (read(0, "12"), read(1, "red"), read(2, "1e-3")),
            (Ok(json!(12)), Ok(json!("red")), Ok(json!(0.001)))
        );
        for (at, text, expected) in [
            (0, "1.5", "whole number"),
            (0, "-1", "whole number"),
            (1, "green", "expected `red` or `dark-blue`"),
            (2, "much", "a number"),
            (2, "nan", "finite"),
        ] {
            let message = read(at, text).unwrap_err();
            assert!(message.contains(expected), "{text}: {message}");
        }
        assert!(settings[2].check(&Value::Null).unwrap_err().contains("finite"));
    }
}
