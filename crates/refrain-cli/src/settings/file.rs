//! Settings from a file: those that it names, or the configuration of a run; TOML or JSON.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use refrain_forecast::settings::Values;
use toml::Spanned;

use super::known;
use super::list::{MODEL, Model, models};
use super::of_run::settings_of;
use crate::error::{Error, Result};

/// The settings of a file.
#[derive(Debug, Default)]
pub struct FileSettings {
    pub values: Values,
    /// Whether the file is the configuration of a run, which has every setting of its model, chosen or not.
    pub of_run: bool,
}

impl FileSettings {
    /// Whether the user has chosen a setting in this file. The configuration of a run has all settings and chooses none.
    pub fn chooses(&self, name: &str) -> bool {
        !self.of_run && self.values.contains_key(name)
    }

    /// The settings for a model. The configuration of a run has those of how data is read and trained on for every model; the
    /// settings of its own model, such as the width, are for that model alone.
    pub fn for_model(&self, model: &Model) -> Values {
        if !self.of_run {
            return self.values.clone();
        }
        let own =
            models().iter().find(|own| self.values.get(MODEL).is_some_and(|name| name == own.listing.name));
        let is_of_own = |name: &str| {
            own.is_some_and(|own| own.listing.settings.iter().any(|setting| setting.name() == name))
        };
        let is_own = own.is_some_and(|own| own.listing.name == model.listing.name);
        let holds = |name: &str| name != MODEL && model.has(name) && (is_own || !is_of_own(name));
        self.values
            .iter()
            .filter(|(name, _)| holds(name))
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect()
    }
}

/// Reads a file of settings.
pub fn read(path: &Path) -> Result<FileSettings> {
    /// A device such as /dev/zero has no end.
    const LONGEST: u64 = 1 << 20;
    let mut text = String::new();
    let file = File::open(path).map_err(|source| Error::read(path, source))?;
    file.take(LONGEST + 1).read_to_string(&mut text).map_err(|source| Error::read(path, source))?;
    if text.len() as u64 > LONGEST {
        let error = format!("the file is larger than {LONGEST} bytes");
        return Err(Error::TomlSyntax { path: path.to_owned(), error });
    }
    let wrong = |error: String| Error::TomlSyntax { path: path.to_owned(), error };
    let kept = match text.trim_start().starts_with('{') {
        true => serde_json::from_str(&text).map_err(|error| wrong(format!("not JSON: {error}")))?,
        false => {
            let table: toml::Table = toml::from_str(&text).map_err(|error| wrong(error.to_string()))?;
            // No setting has one of these names.
            if !table.contains_key("version") && !table.get("config").is_some_and(toml::Value::is_table) {
                return Ok(FileSettings { values: parse(&text, path)?, of_run: false });
            }
            serde_json::to_value(table).map_err(Error::Json)?
        }
    };
    Ok(FileSettings { values: settings_of(kept, path)?, of_run: true })
}

/// The settings of a text; `path` is its name in messages.
pub fn parse(text: &str, path: &Path) -> Result<Values> {
    let wrong = |error: String| Error::TomlSyntax { path: path.to_owned(), error };
    let table: BTreeMap<Spanned<String>, Spanned<toml::Value>> =
        toml::from_str(text).map_err(|error| wrong(error.to_string()))?;
    let mut values = Values::new();
    for (name, value) in table {
        let before = text.get(..name.span().start).unwrap_or(text);
        let line = 1 + before.matches('\n').count();
        let refuse = |problem: String| wrong(format!("line {line}: {problem}"));
        let name = name.into_inner();
        let Some(known) = known().iter().find(|known| known.placed.setting.name() == name) else {
            return Err(refuse(format!("unknown setting `{name}`")));
        };
        let value = serde_json::to_value(value.into_inner()).map_err(Error::Json)?;
        known.placed.setting.check(&value).map_err(|problem| refuse(format!("{name}: {problem}")))?;
        values.insert(name, value);
    }
    Ok(values)
}
