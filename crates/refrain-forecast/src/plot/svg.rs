//! The few SVG elements that the plots use.

use std::fmt::Write;

/// Height of normal text in pixels.
pub const FONT_SIZE: f64 = 12.0;

/// Where a text is placed relative to its point.
#[derive(Debug, Clone, Copy)]
pub enum Anchor {
    Start,
    Middle,
    End,
}

/// Colour, width and dashes of a line.
#[derive(Debug, Clone, Copy)]
pub struct Stroke {
    pub colour: &'static str,
    pub width: f64,
    pub dashed: bool,
}

/// An SVG drawing. Coordinates are pixels from the upper left corner.
pub struct Svg {
    width: f64,
    height: f64,
    body: String,
}

impl Svg {
    pub fn new(width: f64, height: f64) -> Svg {
        Svg { width, height, body: String::new() }
    }

    pub fn rectangle(&mut self, x: f64, y: f64, width: f64, height: f64, fill: &str) {
        self.push(format_args!(
            r#"<rect x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{height:.1}" fill="{fill}"/>"#
        ));
    }

    pub fn circle(&mut self, x: f64, y: f64, radius: f64, fill: &str) {
        self.push(format_args!(r#"<circle cx="{x:.1}" cy="{y:.1}" r="{radius:.1}" fill="{fill}"/>"#));
    }

    pub fn line(&mut self, points: &[(f64, f64)], stroke: Stroke) {
        let points: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let Stroke { colour, width, dashed } = stroke;
        let dash = if dashed { r#" stroke-dasharray="5 3""# } else { "" };
        self.push(format_args!(
            r#"<polyline points="{}" fill="none" stroke="{colour}" stroke-width="{width}" stroke-linejoin="round"{dash}/>"#,
            points.join(" ")
        ));
    }

    /// Fills the area inside a closed line.
    pub fn area(&mut self, points: &[(f64, f64)], fill: &str) {
        let points: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        self.push(format_args!(
            r#"<polygon points="{}" fill="{fill}" fill-opacity="0.5"/>"#,
            points.join(" ")
        ));
    }

    pub fn text(&mut self, x: f64, y: f64, anchor: Anchor, text: &str) {
        self.push(format_args!(r#"<text x="{x:.1}" y="{y:.1}"{}>{}</text>"#, anchored(anchor), escape(text)));
    }

    pub fn heading(&mut self, x: f64, y: f64, text: &str) {
        self.push(format_args!(
            r#"<text x="{x:.1}" y="{y:.1}" font-size="15" font-weight="bold">{}</text>"#,
            escape(text)
        ));
    }

    /// Draws text that reads upwards, centred on its point.
    pub fn upward_text(&mut self, x: f64, y: f64, text: &str) {
        self.push(format_args!(
            r#"<text x="{x:.1}" y="{y:.1}" text-anchor="middle" transform="rotate(-90 {x:.1} {y:.1})">{}</text>"#,
            escape(text)
        ));
    }

    pub fn finish(self) -> String {
        let Svg { width, height, body } = self;
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
             viewBox=\"0 0 {width} {height}\" font-family=\"Helvetica, Arial, sans-serif\" \
             font-size=\"{FONT_SIZE}\" fill=\"#333333\">\n\
             <rect width=\"{width}\" height=\"{height}\" fill=\"white\"/>\n{body}</svg>\n"
        )
    }

    fn push(&mut self, element: std::fmt::Arguments) {
        // Writing to a String cannot fail.
        let _ = writeln!(self.body, "{element}");
    }
}

/// The approximate width of a text. Viewers use different fonts.
pub fn text_width(text: &str) -> f64 {
    text.chars().count() as f64 * FONT_SIZE * 0.58
}

/// Shortens a name, so that it fits.
pub fn shorten(name: &str) -> String {
    const LONGEST: usize = 80;
    if name.chars().count() <= LONGEST {
        name.to_owned()
    } else {
        name.chars().take(LONGEST).chain("...".chars()).collect()
    }
}

fn anchored(anchor: Anchor) -> &'static str {
    match anchor {
        Anchor::Start => "",
        Anchor::Middle => r#" text-anchor="middle""#,
        Anchor::End => r#" text-anchor="end""#,
    }
}

/// Escapes a text for XML and HTML. Names of channels come from files and may contain anything; XML forbids control
/// characters.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            character if character.is_control() || matches!(character, '\u{fffe}' | '\u{ffff}') => {
                out.push('\u{fffd}')
            }
            character => out.push(character),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_escaped() {
        assert_eq!(escape("a<b> & \u{1}é"), "a&lt;b&gt; &amp; \u{fffd}é");
    }
}
