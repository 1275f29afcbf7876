//! A page of HTML that needs nothing besides itself. It is well-formed XML, too.

use std::fmt::Write;

use refrain_forecast::plot::escape;

/// A page in the making.
pub struct Page {
    title: String,
    body: String,
}

const STYLE: &str = "\
body { font-family: Helvetica, Arial, sans-serif; color: #333; max-width: 1000px; margin: 24px auto; padding: 0 16px; }
h1 { font-size: 24px; } h2 { font-size: 18px; margin-top: 36px; border-bottom: 1px solid #ddd; padding-bottom: 4px; }
table { border-collapse: collapse; margin: 12px 0; font-size: 14px; }
th, td { padding: 4px 12px 4px 0; text-align: right; border-bottom: 1px solid #eee; }
th:first-child, td:first-child, table.facts td { text-align: left; } th { border-bottom: 1px solid #999; }
div.wide { overflow-x: auto; } svg { max-width: 100%; height: auto; display: block; margin: 12px 0; }
";

impl Page {
    pub fn new(title: &str) -> Page {
        let mut page = Page { title: title.to_owned(), body: String::new() };
        page.element("h1", title);
        page
    }

    pub fn heading(&mut self, text: &str) {
        self.element("h2", text);
    }

    pub fn paragraph(&mut self, text: &str) {
        self.element("p", text);
    }

    /// A table with a header. Rows of text; the first column is aligned left.
    pub fn table(&mut self, header: &[String], rows: &[Vec<String>]) {
        let cells = |name: &str, cells: &[String]| -> String {
            cells.iter().map(|cell| format!("<{name}>{}</{name}>", escape(cell))).collect()
        };
        let head = cells("th", header);
        let rows: String = rows.iter().map(|row| format!("<tr>{}</tr>\n", cells("td", row))).collect();
        self.push(format_args!("<div class=\"wide\"><table>\n<tr>{head}</tr>\n{rows}</table></div>"));
    }

    /// Facts, each with its name.
    pub fn facts(&mut self, facts: &[(&str, String)]) {
        let row = |(name, value): &(&str, String)| {
            format!("<tr><td>{}</td><td>{}</td></tr>\n", escape(name), escape(value))
        };
        let rows: String = facts.iter().map(row).collect();
        self.push(format_args!("<div class=\"wide\"><table class=\"facts\">\n{rows}</table></div>"));
    }

    /// A drawing, as `refrain_forecast::plot` makes it.
    pub fn svg(&mut self, svg: &str) {
        self.push(format_args!("{svg}"));
    }

    pub fn finish(self) -> String {
        let (title, body) = (escape(&self.title), self.body);
        format!(
            "<!DOCTYPE html>\n<html xmlns=\"http://www.w3.org/1999/xhtml\" lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n\
             <meta name=\"viewport\" content=\"width=device-width\"/>\n<title>{title}</title>\n<style>\n{STYLE}</style>\n\
             </head>\n<body>\n{body}</body>\n</html>\n"
        )
    }

    fn element(&mut self, name: &str, text: &str) {
        self.push(format_args!("<{name}>{}</{name}>", escape(text)));
    }

    fn push(&mut self, element: std::fmt::Arguments) {
        // Writing to a String cannot fail.
        let _ = writeln!(self.body, "{element}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_text_whatever_they_contain() {
        let mut page = Page::new("<script>alert(1)</script>");
        page.table(&["a & b".to_owned()], &[vec!["</td>\u{1}".to_owned()]]);
        let html = page.finish();
        assert!(
            !html.contains("<script") && html.contains("a &amp; b") && html.contains("&lt;/td&gt;\u{fffd}"),
            "{html}"
        );
    }
}
