//! The text of a table, from a file or another stream, a piece at a time: the whole of it is never in memory.

use super::dialect::Comment;
use crate::{Error, Result};
use std::cell::Cell;
use std::io::{self, Cursor, Read};
use std::path::Path;
use std::rc::Rc;

/// How many bytes are read at a time, at least.
const CHUNK: usize = 1 << 16;
/// The maximum number of bytes of a row or header, with blank lines and comments before it.
const LONGEST_ROW: u64 = 16 << 20;

/// The text of a table from its header on.
pub(crate) struct Text<'a> {
    /// The header as it is written.
    pub(crate) header: Vec<u8>,
    /// Number of lines above the header.
    pub(crate) lines: u64,
    /// Everything from the header on. Its errors are those of this crate; [`error_of`] takes them out.
    pub(crate) stream: Box<dyn Read + 'a>,
    pub(crate) progress: Progress,
}

/// Where the row begins that is being read. Whoever reads the rows says so, and a row that does not end is refused before it
/// fills the memory.
#[derive(Clone, Default)]
pub(crate) struct Progress(Rc<Cell<u64>>, u64);

impl Progress {
    /// A row begins at this byte of the text.
    pub(crate) fn row_at(&self, byte: u64) {
        self.0.set(self.1 + byte);
    }
}

impl<'a> Text<'a> {
    /// The text in a stream, without what stands above the header: a byte order mark, blank lines and comments.
    ///
    /// # Errors
    /// [`Error::NotUtf8`] for a zero byte, [`Error::LongRow`], [`Error::Read`].
    pub(crate) fn of(stream: Box<dyn Read + 'a>, comment: Comment, file: &str) -> Result<Text<'a>> {
        let progress = Progress::default();
        let mut stream =
            Checked { stream, file: file.to_owned(), read: 0, lines: 1, row: progress.0.clone() };
        let mut head = Vec::new();
        let place = loop {
            let more = (&mut stream).take(head.len().max(CHUNK) as u64).read_to_end(&mut head);
            let is_end = more.map_err(|error| error_of(error, file))? == 0;
            match header_of(&head, comment, is_end) {
                Some(place) => break place,
                None if is_end => break Place { begin: head.len(), end: head.len(), lines: 0 },
                None => {}
            }
        };
        let header = head[place.begin..place.end].to_vec();
        head.drain(..place.begin);
        let progress = Progress(progress.0, place.begin as u64);
        Ok(Text { header, lines: place.lines, stream: Box::new(Cursor::new(head).chain(stream)), progress })
    }
}

/// Where the header is in the first bytes of a text.
struct Place {
    begin: usize,
    end: usize,
    lines: u64,
}

/// The place of the header; `None` if it does not end in these bytes, which may not be all.
fn header_of(head: &[u8], comment: Comment, is_end: bool) -> Option<Place> {
    let sign = match comment {
        Comment::Auto => Some(b'#'),
        Comment::None => None,
        Comment::Sign(sign) => Some(sign),
    };
    let is_newline = |byte: &u8| matches!(byte, b'\n' | b'\r');
    let mut begin = if head.starts_with(b"\xef\xbb\xbf") { 3 } else { 0 };
    let mut lines = 0;
    loop {
        let rest = &head[begin..];
        let first = *rest.first()?;
        if is_newline(&first) {
            lines += u64::from(first == b'\n');
            begin += 1;
        } else if Some(first) == sign {
            // What ends the line is left out as a blank line.
            begin += rest.iter().position(is_newline)?;
        } else {
            let mut quoted = false;
            let ends = |byte: &u8| {
                quoted ^= *byte == b'"';
                !quoted && is_newline(byte)
            };
            let end = match rest.iter().position(ends) {
                Some(length) => begin + length,
                None if is_end => head.len(),
                None => return None,
            };
            return Some(Place { begin, end, lines });
        }
    }
}

/// A stream that must be text, row by row.
struct Checked<'a> {
    stream: Box<dyn Read + 'a>,
    file: String,
    /// Bytes so far.
    read: u64,
    /// The line of the next byte.
    lines: u64,
    /// The byte at which the row begins that is being read.
    row: Rc<Cell<u64>>,
}

impl Read for Checked<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = self.stream.read(buffer)?;
        let chunk = &buffer[..length];
        let newlines = |bytes: &[u8]| bytes.iter().filter(|&&byte| byte == b'\n').count() as u64;
        let refuse = |error: Error| Err(io::Error::new(io::ErrorKind::InvalidData, error));
        if chunk.contains(&0) {
            let before = chunk.split(|&byte| byte == 0).next().unwrap_or_default();
            return refuse(Error::NotUtf8 { file: self.file.clone(), line: self.lines + newlines(before) });
        }
        self.read += length as u64;
        self.lines += newlines(chunk);
        if self.read - self.row.get() > LONGEST_ROW + CHUNK as u64 {
            return refuse(Error::LongRow { file: self.file.clone(), limit: LONGEST_ROW, line: self.lines });
        }
        Ok(length)
    }
}

/// The error of this crate in an error of a stream; otherwise that the file cannot be read.
pub(crate) fn error_of(error: io::Error, file: &str) -> Error {
    match error.downcast::<Error>() {
        Ok(own) => own,
        Err(source) => Error::Read { path: Path::new(file).to_owned(), source },
    }
}

/// Shortens a cell, so that messages stay readable.
pub(crate) fn shorten(cell: &str) -> String {
    const LONGEST: usize = 40;
    if cell.chars().count() <= LONGEST {
        cell.to_owned()
    } else {
        cell.chars().take(LONGEST).chain("...".chars()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text<'a>(bytes: impl Read + 'a, comment: Comment) -> Result<Text<'a>> {
        Text::of(Box::new(bytes), comment, "a.csv")
    }

    #[test]
    fn what_does_not_end_is_refused() {
        let refused = |stream: &mut dyn Read| text(stream, Comment::Auto).err().unwrap().to_string();
        let zeros = refused(&mut io::repeat(0));
        assert!(zeros.contains("a.csv, line 1: not UTF-8 text"), "{zeros}");
        for byte in [b'a', b'\n', b'#'] {
            let line = refused(&mut io::repeat(byte));
            assert!(line.contains("no row ends within 16 MiB"), "{line}");
        }
        let rows = io::Cursor::new("time,a\n").chain(io::repeat(b'"'));
        let mut text = text(rows, Comment::Auto).unwrap();
        let error = io::copy(&mut text.stream, &mut io::sink()).unwrap_err();
        assert!(error_of(error, "a.csv").to_string().contains("no row ends within 16 MiB"));
    }

    #[test]
    fn what_is_read_row_by_row_has_no_end() {
        let row = b"2020-01-01,1\n";
        let endless = (&b"time,a\n"[..]).chain(io::Cursor::new(row.repeat(1 << 16)));
        let mut text = text(endless.chain(io::Cursor::new(row.repeat(3 << 20))), Comment::Auto).unwrap();
        let (mut piece, mut read) = ([0; 4096], 0);
        loop {
            text.progress.row_at(read);
            match text.stream.read(&mut piece).unwrap() {
                0 => break,
                length => read += length as u64,
            }
        }
        assert_eq!(read, 7 + (row.len() as u64) * ((1 << 16) + (3 << 20)));
    }

    #[test]
    fn what_stands_above_the_header_is_left_out() {
        for (bytes, comment, header, lines) in [
            ("time,a\n1,2\n", Comment::Auto, "time,a", 0),
            ("\u{feff}# source: x, y\r\n\r\n#\ntime;a\r\n1;2", Comment::Auto, "time;a", 3),
            ("#time,a\n1,2\n", Comment::None, "#time,a", 0),
            ("% a\n#time,a\n", Comment::Sign(b'%'), "#time,a", 1),
            ("\"time\n(UTC)\",a\n1,2\n", Comment::Auto, "\"time\n(UTC)\",a", 0),
            ("time,a", Comment::Auto, "time,a", 0),
            ("# only", Comment::Auto, "", 0),
            ("time,a\r1,2\r", Comment::Auto, "time,a", 0),
        ] {
            let mut found = text(bytes.as_bytes(), comment).unwrap();
            assert_eq!(std::str::from_utf8(&found.header).unwrap(), header, "{bytes:?}");
            assert_eq!(found.lines, lines, "{bytes:?}");
            let mut rest = String::new();
            found.stream.read_to_string(&mut rest).unwrap();
            assert!(rest.starts_with(header) && bytes.ends_with(&rest), "{bytes:?}: {rest:?}");
        }
        // A header may be longer than what is read at a time.
        let long = format!("{}time,{}\n1,2\n", "# c\n".repeat(50_000), "a".repeat(300_000));
        let found = text(long.as_bytes(), Comment::Auto).unwrap();
        assert_eq!((found.header.len(), found.lines), (300_005, 50_000));
    }
}
