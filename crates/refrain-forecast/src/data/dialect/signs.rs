//! Signs of a text: between cells, in numbers, before comments.

use serde::{Deserialize, Serialize};

/// What stands between the cells of a row.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum Separator {
    /// The one of comma, semicolon, tab and bar that the header has most of; the first of these if several are equal.
    #[default]
    Auto,
    /// This ASCII character.
    Sign(u8),
}

/// The separators that are found, with their names.
const SEPARATORS: [(u8, &str); 4] = [(b',', "comma"), (b';', "semicolon"), (b'\t', "tab"), (b'|', "bar")];

impl Separator {
    /// The separator of a file with this header.
    pub(crate) fn of_header(self, header: &[u8]) -> u8 {
        if let Separator::Sign(sign) = self {
            return sign;
        }
        let mut counts = [0_usize; SEPARATORS.len()];
        let mut quoted = false;
        for &byte in header {
            quoted ^= byte == b'"';
            if let (false, Some(place)) = (quoted, SEPARATORS.iter().position(|&(sign, _)| sign == byte)) {
                counts[place] += 1;
            }
        }
        let most = counts.iter().max().copied().unwrap_or(0);
        let place = counts.iter().position(|&count| count == most).unwrap_or(0);
        SEPARATORS[place].0
    }

    /// What a message calls it.
    pub(crate) fn name(sign: u8) -> String {
        match SEPARATORS.iter().find(|&&(known, _)| known == sign) {
            Some((_, name)) => (*name).to_owned(),
            None => char::from(sign).to_string(),
        }
    }
}

impl From<Separator> for String {
    fn from(separator: Separator) -> String {
        match separator {
            Separator::Auto => "auto".to_owned(),
            Separator::Sign(sign) => Separator::name(sign),
        }
    }
}

impl TryFrom<String> for Separator {
    type Error = String;

    fn try_from(text: String) -> Result<Separator, String> {
        if text == "auto" {
            return Ok(Separator::Auto);
        }
        if let Some((sign, _)) = SEPARATORS.iter().find(|(_, name)| *name == text) {
            return Ok(Separator::Sign(*sign));
        }
        match text.as_str() {
            "\\t" => Ok(Separator::Sign(b'\t')),
            text => sign_of(text).map(Separator::Sign).ok_or_else(|| {
                format!(
                    "{text:?} is neither comma, semicolon, tab, bar or auto, nor one sign that is neither a letter nor a digit"
                )
            }),
        }
    }
}

/// The decimal sign of numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Decimal {
    /// `1.5`
    #[default]
    Point,
    /// `1,5`
    Comma,
}

/// Lines that are left out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum Comment {
    /// Those above the header that begin with `#`.
    #[default]
    Auto,
    /// None.
    None,
    /// All that begin with this ASCII character.
    Sign(u8),
}

impl From<Comment> for String {
    fn from(comment: Comment) -> String {
        match comment {
            Comment::Auto => "auto".to_owned(),
            Comment::None => "none".to_owned(),
            Comment::Sign(sign) => char::from(sign).to_string(),
        }
    }
}

impl TryFrom<String> for Comment {
    type Error = String;

    fn try_from(text: String) -> Result<Comment, String> {
        match text.as_str() {
            "auto" => Ok(Comment::Auto),
            "none" => Ok(Comment::None),
            text => sign_of(text).map(Comment::Sign).ok_or_else(|| {
                format!("{text:?} is neither auto or none, nor one sign that is neither a letter nor a digit")
            }),
        }
    }
}

/// A sign that may stand between cells or before a comment: one ASCII character that is no part of a word, a number or a quote.
fn sign_of(text: &str) -> Option<u8> {
    match text.as_bytes() {
        [sign] if sign.is_ascii_punctuation() && !b"\"+-.".contains(sign) => Some(*sign),
        [sign @ (b'\t' | b' ')] => Some(*sign),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_frequent_separator_of_the_header_is_found() {
        for (header, expected) in [
            ("time,a,b", b','),
            ("Zeit;Last (kW, netto);Preis", b';'),
            ("time\ta\tb, c", b'\t'),
            ("time|a", b'|'),
            ("time,\"a;b;c\"", b','),
            ("time,a;b", b','),
            ("time", b','),
        ] {
            assert_eq!(Separator::Auto.of_header(header.as_bytes()), expected, "{header}");
        }
        assert_eq!(Separator::Sign(b'|').of_header(b"time,a,b"), b'|');
    }
}
