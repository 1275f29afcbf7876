//! Settings from a file: those that it names, or the configuration of a run; TOML or JSON.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use refrain_forecast::settings::Values;
use toml::Spanned;

use super::known;
use super::list::{MODEL, Model};
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
    /// The settings for these models. Of the configuration of a run, those that only its own model has are left out.
    pub fn for_models(self, models: &[&Model]) -> Values {
        let has = |name: &str| name != MODEL && models.iter().any(|model| model.has(name));
        match self.of_run {
            true => self.values.into_iter().filter(|(name, _)| has(name)).collect(),
            false => self.values,
        }
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
