//! A tree as text.

use std::fmt;

use super::LayerTree;

impl fmt::Display for LayerTree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text(" parameters"))
    }
}

impl LayerTree {
    /// `Linear(in_features=3, ..)  # 32`, or several lines if it has parts. What is `counted` stands behind the number.
    fn text(&self, counted: &str) -> String {
        let settings = self.settings.join(", ");
        let count = match self.count() {
            0 => String::new(),
            count => format!("  # {count}{counted}"),
        };
        if self.parts.is_empty() {
            return format!("{}({settings}){count}", self.kind);
        }
        let mut text = format!("{}({settings}{count}\n", self.kind);
        for (name, part) in merged(self.parts.iter().map(|(name, part)| (name.as_str(), part.text("")))) {
            for line in format!("({name}): {part}").lines() {
                text += &format!("  {line}\n");
            }
        }
        text + ")"
    }
}

/// Parts one after another that look alike are printed once, with the first and the last name and their number.
fn merged<'a>(parts: impl Iterator<Item = (&'a str, String)>) -> Vec<(String, String)> {
    // The first name, the last one, how many, and what they look like.
    let mut runs: Vec<(&str, &str, usize, String)> = Vec::new();
    for (name, text) in parts {
        match runs.last_mut() {
            Some((_, last, count, same)) if *same == text && is_next(last, name) => {
                (*last, *count) = (name, *count + 1);
            }
            _ => runs.push((name, name, 1, text)),
        }
    }
    let described = runs.into_iter().map(|(first, last, count, text)| match count {
        1 => (first.to_owned(), text),
        _ => (format!("{first}-{last}"), format!("{count} x {text}")),
    });
    described.collect()
}

/// Whether a name is the number after another one.
fn is_next(before: &str, name: &str) -> bool {
    let number = |name: &str| name.parse::<usize>().ok();
    number(before).and_then(|before| before.checked_add(1)).is_some_and(|next| number(name) == Some(next))
}
