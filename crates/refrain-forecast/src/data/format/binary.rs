//! What a file that is no text looks like, by its first bytes.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use crate::{Error, Result};

/// A format of typed columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Columnar {
    Parquet,
    /// Arrow IPC with a footer, which is also what Feather writes.
    ArrowFile,
    ArrowStream,
}

/// What a file begins with, and what it is then.
const SIGNATURES: [(&[u8], Kind); 8] = [
    (b"PAR1", Kind::Columnar(Columnar::Parquet)),
    (b"ARROW1", Kind::Columnar(Columnar::ArrowFile)),
    (&[0xff; 4], Kind::Columnar(Columnar::ArrowStream)),
    (&[0x1f, 0x8b], Kind::Other("a gzip file", "decompress it (`gunzip`)")),
    (b"PK\x03\x04", Kind::Other("a zip file or an Excel workbook", "unpack it, or save the sheet as CSV")),
    (&[0xd0, 0xcf, 0x11, 0xe0], Kind::Other("an old Excel workbook", "save the sheet as CSV")),
    (&[0xff, 0xfe], Kind::Other("UTF-16 text", "convert it (`iconv -f utf-16 -t utf-8`)")),
    (&[0xfe, 0xff], Kind::Other("UTF-16 text", "convert it (`iconv -f utf-16 -t utf-8`)")),
];

#[derive(Debug, Clone, Copy)]
enum Kind {
    Columnar(Columnar),
    /// What it is, and what to do about it.
    Other(&'static str, &'static str),
}

impl Columnar {
    /// What a file is by its first bytes; `None` for text. Of a stream, nothing is taken.
    ///
    /// # Errors
    /// [`Error::Binary`] for what is neither text nor columns.
    pub(super) fn of_file(path: &Path) -> Result<Option<Columnar>> {
        let mut head = [0; 8];
        let is_file = path.metadata().is_ok_and(|of| of.is_file());
        // A file that cannot be read is an error when its text is.
        let Some(mut file) = is_file.then(|| File::open(path).ok()).flatten() else { return Ok(None) };
        let mut length = 0;
        while let Ok(read @ 1..) = file.read(&mut head[length..]) {
            length += read;
        }
        match kind_of(&head[..length]) {
            None => Ok(None),
            Some(Kind::Columnar(format)) => Ok(Some(format)),
            Some(Kind::Other(what, fix)) => {
                let file = path.display().to_string();
                Err(Error::Binary { file, what, fix })
            }
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Columnar::Parquet => "Parquet",
            Columnar::ArrowFile | Columnar::ArrowStream => "Arrow IPC",
        }
    }
}

fn kind_of(head: &[u8]) -> Option<Kind> {
    SIGNATURES.iter().find(|(begin, _)| head.starts_with(begin)).map(|&(_, kind)| kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_file_looks_like_is_said() {
        let place = tempfile::NamedTempFile::new().unwrap();
        let of = |bytes: &[u8]| {
            std::fs::write(&place, bytes).unwrap();
            Columnar::of_file(place.path())
        };
        assert_eq!(of(b"PAR1rest").unwrap(), Some(Columnar::Parquet));
        assert_eq!(of(b"ARROW1\0\0rest").unwrap(), Some(Columnar::ArrowFile));
        assert_eq!(of(&[0xff; 9]).unwrap(), Some(Columnar::ArrowStream));
        for text in [&b"time,a\n"[..], b"", b"PA", b"\xef\xbb\xbftime"] {
            assert_eq!(of(text).unwrap(), None, "{text:?}");
        }
        for (bytes, expected) in [
            (&[0x1f, 0x8b, 8][..], "gunzip"),
            (b"PK\x03\x04..", "Excel"),
            (&[0xff, 0xfe, b't', 0], "iconv -f utf-16"),
        ] {
            assert!(of(bytes).unwrap_err().to_string().contains(expected), "{expected}");
        }
        assert_eq!(Columnar::of_file(Path::new("/nowhere/at/all")).unwrap(), None);
    }
}
