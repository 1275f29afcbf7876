//! Lists of words that are written with commas.

use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Some values, such as the names of columns. As text they are `a,b`, or `none`.
///
/// ```
/// use refrain_forecast::settings::CommaList;
///
/// let names: CommaList<String> = serde_json::from_str("\"a, b\"").unwrap();
/// assert_eq!(*names, ["a", "b"]);
/// assert_eq!(serde_json::to_string(&names).unwrap(), "\"a,b\"");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommaList<T>(pub Vec<T>);

const NONE: &str = "none";

impl<T> Default for CommaList<T> {
    fn default() -> CommaList<T> {
        CommaList(Vec::new())
    }
}

impl<T> std::ops::Deref for CommaList<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.0
    }
}

impl<T: Serialize> Serialize for CommaList<T> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let word = |value: &T| match serde_json::to_value(value) {
            Ok(serde_json::Value::String(word)) => Ok(word),
            Ok(other) => Ok(other.to_string()),
            Err(error) => Err(serde::ser::Error::custom(error)),
        };
        let words = self.0.iter().map(word).collect::<Result<Vec<String>, S::Error>>()?;
        // A name with a comma is kept, as a list.
        match words.iter().any(|word| word.contains(',') || word.trim() != word || word == NONE) {
            true => words.serialize(to),
            false if words.is_empty() => to.serialize_str(NONE),
            false => to.serialize_str(&words.join(",")),
        }
    }
}

/// A list as it is written down.
#[derive(Deserialize)]
#[serde(untagged, expecting = "neither `none` nor words with commas between them")]
enum Written {
    Text(String),
    Several(Vec<String>),
}

impl<'de, T: DeserializeOwned> Deserialize<'de> for CommaList<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<CommaList<T>, D::Error> {
        let words: Vec<String> = match Written::deserialize(from)? {
            Written::Text(text) if text == NONE => Vec::new(),
            Written::Text(text) => text.split(',').map(|word| word.trim().to_owned()).collect(),
            Written::Several(words) => words,
        };
        if words.iter().any(String::is_empty) {
            return Err(D::Error::custom(
                "a word of the list is empty; write words such as `a,b`, or `none`",
            ));
        }
        let mut sorted: Vec<&String> = words.iter().collect();
        sorted.sort_unstable();
        if let Some(pair) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(D::Error::custom(format!("`{}` is given twice", pair[0])));
        }
        let value = |word| T::deserialize(serde_json::Value::String(word)).map_err(D::Error::custom);
        Ok(CommaList(words.into_iter().map(value).collect::<Result<_, _>>()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_list_is_written_as_it_is_read() {
        for (value, words, written) in [
            (json!("none"), &[][..], json!("none")),
            (json!("a, b c"), &["a", "b c"], json!("a,b c")),
            (json!(["a", "b,c"]), &["a", "b,c"], json!(["a", "b,c"])),
            (json!(["none"]), &["none"], json!(["none"])),
        ] {
            let list: CommaList<String> = serde_json::from_value(value).unwrap();
            assert_eq!(*list, *words);
            assert_eq!(serde_json::to_value(list).unwrap(), written);
        }
        for (value, expected) in
            [(json!("a,,b"), "is empty"), (json!("a,a"), "`a` is given twice"), (json!(1), "neither")]
        {
            let message = serde_json::from_value::<CommaList<String>>(value).unwrap_err().to_string();
            assert!(message.contains(expected), "{message}");
        }
    }
}
