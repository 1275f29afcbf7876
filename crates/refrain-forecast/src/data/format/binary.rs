//! What a file is, by its first bytes.

use flate2::read::MultiGzDecoder;
use std::io::{self, Cursor, Read};

use crate::data::text::error_of;
use crate::{Error, Result};

/// A format of typed columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Columnar {
    Parquet,
    /// Arrow IPC with a footer, which is also what Feather writes.
    ArrowFile,
    ArrowStream,
}

impl Columnar {
    /// What a message calls a file of it.
    pub(super) fn what(self) -> &'static str {
        match self {
            Columnar::Parquet => "a Parquet file",
            Columnar::ArrowFile | Columnar::ArrowStream => "an Arrow IPC file",
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    Columnar(Columnar),
    Gzip,
    /// What it is, and what to do about it.
    Other(&'static str, &'static str),
}

const SHEET: &str = "save the sheet as CSV";
const CONVERT: &str = "convert it (`iconv -f utf-16 -t utf-8`)";
const UNPACK: &str = "unpack it, or pack it by gzip";
const TABLE: &str = "write its table as CSV";

/// What a file begins with, and what it is then.
const SIGNATURES: [(&[u8], Kind); 23] = [
    (b"PAR1", Kind::Columnar(Columnar::Parquet)),
    (b"ARROW1", Kind::Columnar(Columnar::ArrowFile)),
    (&[0xff; 4], Kind::Columnar(Columnar::ArrowStream)),
    (&[0x1f, 0x8b], Kind::Gzip),
    (b"PK\x03\x04", Kind::Other("a zip file or an Excel workbook", "unpack it, or save the sheet as CSV")),
    (&[0xd0, 0xcf, 0x11, 0xe0], Kind::Other("an old Excel workbook", SHEET)),
    (&[0xff, 0xfe], Kind::Other("UTF-16 text", CONVERT)),
    (&[0xfe, 0xff], Kind::Other("UTF-16 text", CONVERT)),
    (&[0x28, 0xb5, 0x2f, 0xfd], Kind::Other("a zstd file", UNPACK)),
    (b"BZh", Kind::Other("a bzip2 file", UNPACK)),
    (&[0xfd, b'7', b'z', b'X', b'Z', 0], Kind::Other("an xz file", UNPACK)),
    (b"\x89HDF", Kind::Other("an HDF5 file", TABLE)),
    (b"SQLite format 3", Kind::Other("an SQLite database", TABLE)),
    (b"\x93NUMPY", Kind::Other("a NumPy array", TABLE)),
    (&[0x80, 0x04], Kind::Other("a Python pickle", TABLE)),
    (&[0x80, 0x05], Kind::Other("a Python pickle", TABLE)),
    (b"<!DOCTYPE", Kind::Other("a web page", "download the file itself, not the page about it")),
    (b"<!doctype", Kind::Other("a web page", "download the file itself, not the page about it")),
    (b"<html", Kind::Other("a web page", "download the file itself, not the page about it")),
    (b"{\"", Kind::Other("JSON", TABLE)),
    (b"{\n", Kind::Other("JSON", TABLE)),
    (b"[{", Kind::Other("JSON", TABLE)),
    (b"[\n", Kind::Other("JSON", TABLE)),
];

fn kind_of(head: &[u8]) -> Option<Kind> {
    SIGNATURES.iter().find(|(begin, _)| head.starts_with(begin)).map(|&(_, kind)| kind)
}

/// What a stream holds.
pub(super) enum Content<'a> {
    Columns(Columnar),
    /// The text, unpacked.
    Text(Box<dyn Read + 'a>),
}

impl<'a> Content<'a> {
    /// What a stream holds, by its first bytes. `file` is its name in messages.
    ///
    /// # Errors
    /// [`Error::Binary`] for what is neither text nor columns, [`Error::Read`], and [`Error::Columns`] for a broken gzip file.
    pub(super) fn of(stream: impl Read + 'a, file: &str) -> Result<Content<'a>> {
        let refuse = |what, fix| Err(Error::Binary { file: file.to_owned(), what, fix });
        let (head, stream) = peeked(Box::new(stream), file)?;
        match kind_of(&head) {
            None => return Ok(Content::Text(stream)),
            Some(Kind::Columnar(format)) => return Ok(Content::Columns(format)),
            Some(Kind::Other(what, fix)) => return refuse(what, fix),
            Some(Kind::Gzip) => {}
        }
        let unpacked = Unpacked { stream: MultiGzDecoder::new(stream), file: file.to_owned() };
        let (head, stream) = peeked(Box::new(unpacked), file)?;
        match kind_of(&head) {
            None => Ok(Content::Text(stream)),
            Some(Kind::Columnar(format)) => {
                refuse(format.what(), "unpack it (`gunzip`); it is compressed in itself")
            }
            Some(Kind::Gzip) => refuse("a gzip file in a gzip file", "unpack it once (`gunzip`)"),
            Some(Kind::Other(what, fix)) => refuse(what, fix),
        }
    }
}

/// The first bytes of a stream, and the stream with them.
fn peeked<'a>(mut stream: Box<dyn Read + 'a>, file: &str) -> Result<(Vec<u8>, Box<dyn Read + 'a>)> {
    let mut head = Vec::new();
    (&mut stream).take(16).read_to_end(&mut head).map_err(|error| error_of(error, file))?;
    let whole = Cursor::new(head.clone()).chain(stream);
    Ok((head, Box::new(whole)))
}

/// A gzip file as it is unpacked.
struct Unpacked<R> {
    stream: MultiGzDecoder<R>,
    file: String,
}

impl<R: Read> Read for Unpacked<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        use io::ErrorKind::{InvalidData, InvalidInput, UnexpectedEof};
        self.stream.read(buffer).map_err(|error| match error.kind() {
            InvalidData | InvalidInput | UnexpectedEof => {
                let problem = match error.kind() {
                    UnexpectedEof => "it ends too early".to_owned(),
                    _ => error.to_string(),
                };
                io::Error::new(
                    InvalidData,
                    Error::Columns { file: self.file.clone(), format: "a gzip file", problem },
                )
            }
            _ => error,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::Compression;
    use flate2::write::GzEncoder;
    use std::io::Write;

    fn zipped(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn text(bytes: &[u8]) -> Result<Vec<u8>> {
        match Content::of(bytes, "a.csv")? {
            Content::Columns(format) => panic!("{format:?}"),
            Content::Text(mut stream) => {
                let mut text = Vec::new();
                stream.read_to_end(&mut text).map_err(|error| error_of(error, "a.csv"))?;
                Ok(text)
            }
        }
    }

    #[test]
    fn what_a_file_looks_like_is_said() {
        let columns = |bytes: &[u8]| match Content::of(bytes, "a.csv") {
            Ok(Content::Columns(format)) => Some(format),
            _ => None,
        };
        assert_eq!(columns(b"PAR1rest"), Some(Columnar::Parquet));
        assert_eq!(columns(b"ARROW1\0\0rest"), Some(Columnar::ArrowFile));
        assert_eq!(columns(&[0xff; 9]), Some(Columnar::ArrowStream));
        for bytes in [&b"time,a\n"[..], b"", b"PA", b"\xef\xbb\xbftime", b"<DATE>,<CLOSE>\n"] {
            assert_eq!(text(bytes).unwrap(), bytes);
        }
        for (bytes, expected) in [
            (&b"PK\x03\x04.."[..], "Excel"),
            (&[0xff, 0xfe, b't', 0], "iconv -f utf-16"),
            (&[0x28, 0xb5, 0x2f, 0xfd], "zstd"),
            (b"<!DOCTYPE html>", "web page"),
            (b"[{\"time\": 1}]", "JSON"),
            (&zipped(b"PAR1rest"), "a Parquet file; unpack it"),
            (&zipped(&zipped(b"time,a\n")), "a gzip file in a gzip file"),
        ] {
            let message = text(bytes).unwrap_err().to_string();
            assert!(message.contains("a.csv looks like") && message.contains(expected), "{message}");
        }
    }

    #[test]
    fn a_gzip_file_is_unpacked_as_it_is_read() {
        let rows = b"time,a\n2020-01-01,1\n".repeat(10_000);
        let whole = zipped(&rows);
        assert_eq!(text(&whole).unwrap(), rows);
        // Two packed files one after the other are one.
        assert_eq!(text(&[zipped(b"time,a\n"), zipped(b"1,2\n")].concat()).unwrap(), b"time,a\n1,2\n");
        let early = text(&whole[..whole.len() / 2]).unwrap_err().to_string();
        assert!(early.contains("not a gzip file") && early.contains("ends too early"), "{early}");
        let mut broken = whole.clone();
        let last = broken.len() - 6;
        broken[last] ^= 1;
        let message = text(&broken).unwrap_err().to_string();
        assert!(message.contains("a.csv: not a gzip file that can be read"), "{message}");
    }
}
