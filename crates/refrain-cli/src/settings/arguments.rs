//! Settings as flags of the command line.

use clap::builder::{PossibleValue, PossibleValuesParser, ValueParser};
use clap::{Arg, ArgMatches, Args, Command, FromArgMatches};
use refrain_forecast::settings::{Preset, Setting};
use serde_json::Value;

use super::list::{Known, models};
use super::{Settings, known};

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

/// The flag of a setting. Its help text shows the default, and the models with another default.
fn argument(known: &Known) -> Arg {
    let setting: &Setting = &known.placed.setting;
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let others = known.models.iter().filter(|(_, default)| default != setting.default());
    let others: String = others.map(|(model, default)| format!("; {} for {model}", text(default))).collect();
    let help = format!("{} [default: {}{others}]", setting.help(), text(setting.default()));
    let reader = setting.clone();
    let argument = Arg::new(setting.name().to_owned())
        .long(setting.name().to_owned())
        .value_name(setting.value_name())
        .value_parser(ValueParser::new(move |text: &str| reader.read(text)))
        // A number below zero is a wrong value, not an unknown flag.
        .allow_negative_numbers(true)
        .help(help);
    let argument = match known.placed.heading {
        Some(heading) => argument.help_heading(heading),
        None => argument,
    };
    match setting.is_switch() {
        true => argument.num_args(0..=1).default_missing_value("true"),
        false => argument,
    }
}
