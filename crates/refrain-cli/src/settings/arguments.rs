//! Settings as flags of the command line.

use clap::builder::{PossibleValue, PossibleValuesParser, ValueParser};
use clap::{Arg, ArgMatches, Args, Command, FromArgMatches};
use refrain_forecast::data::dialect::Dialect;
use refrain_forecast::settings::{Preset, Setting, Values, assemble};
use serde_json::Value;

use super::list::{Known, models};
use super::{Settings, known};
use crate::error::{Error, Result};

/// The presets of all models.
pub fn presets() -> impl Iterator<Item = &'static Preset> {
    models().iter().flat_map(|model| model.listing.about.presets)
}

/// Their names, for a flag.
pub fn preset_names() -> PossibleValuesParser {
    let names = presets().map(|preset| PossibleValue::new(preset.name).help(preset.help));
    PossibleValuesParser::new(names)
}

impl Args for Settings {
    fn augment_args(command: Command) -> Command {
        command.args(known().iter().map(argument))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Settings::augment_args(command)
    }
}

impl FromArgMatches for Settings {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Settings, clap::Error> {
        let set = known().iter().filter_map(|known| {
            let name = known.placed.setting.name();
            Some((name.to_owned(), matches.get_one::<Value>(name)?.clone()))
        });
        Ok(Settings(set.collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Settings::from_arg_matches(matches)?;
        Ok(())
    }
}

/// How the text of data is written, for the commands that have no other settings of training.
#[derive(Debug, Clone, Default)]
pub struct DialectFlags(Values);

impl DialectFlags {
    /// As settings.
    pub fn into_values(self) -> Values {
        self.0
    }

    /// Changes what the flags name.
    pub fn apply(&self, dialect: &mut Dialect) -> Result<()> {
        let kept = serde_json::to_value(&*dialect).map_err(Error::Json)?;
        let Value::Object(kept) = kept else { return Ok(()) };
        let mut values: Values =
            kept.into_iter().map(|(name, value)| (name.replace('_', "-"), value)).collect();
        values.extend(self.0.clone());
        let changed: Dialect = assemble(&Dialect::settings(), &values, Values::new())?;
        *dialect = Dialect { local_days: dialect.local_days, ..changed };
        Ok(())
    }
}

impl Args for DialectFlags {
    fn augment_args(command: Command) -> Command {
        let flag = |setting: &Setting| flag_of(setting, setting.help().to_owned()).help_heading("Data");
        command.args(Dialect::settings().iter().map(flag))
    }

    fn augment_args_for_update(command: Command) -> Command {
        DialectFlags::augment_args(command)
    }
}

impl FromArgMatches for DialectFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<DialectFlags, clap::Error> {
        let settings = Dialect::settings();
        let set = settings.iter().map(Setting::name);
        let set = set.filter_map(|name| Some((name.to_owned(), matches.get_one::<Value>(name)?.clone())));
        Ok(DialectFlags(set.collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = DialectFlags::from_arg_matches(matches)?;
        Ok(())
    }
}

/// The flag of a setting of training. Its help text shows the default, and the models with another default.
fn argument(known: &Known) -> Arg {
    let setting: &Setting = &known.placed.setting;
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let others = known.models.iter().filter(|(_, default)| default != setting.default());
    let others: String = others.map(|(model, default)| format!("; {} for {model}", text(default))).collect();
    let help = format!("{} [default: {}{others}]", setting.help(), text(setting.default()));
    let argument = flag_of(setting, help);
    match known.placed.heading {
        Some(heading) => argument.help_heading(heading),
        None => argument,
    }
}

/// The flag of a setting with this help text.
fn flag_of(setting: &Setting, help: String) -> Arg {
    let reader = setting.clone();
    let argument = Arg::new(setting.name().to_owned())
        .long(setting.name().to_owned())
        .value_name(setting.value_name())
        .value_parser(ValueParser::new(move |text: &str| reader.read(text)))
        // A number below zero is a wrong value, not an unknown flag.
        .allow_negative_numbers(true)
        .help(help);
    match setting.is_switch() {
        true => argument.num_args(0..=1).default_missing_value("true"),
        false => argument,
    }
}
