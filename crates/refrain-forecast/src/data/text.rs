//! Reads the text of a table from a file or another stream, as far as its numbers fit into memory.

use crate::{Error, Result};
use refrain::Device;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// How many bytes are read at a time.
const CHUNK: usize = 1 << 20;
/// The maximum length of the first line of a table.
const LONGEST_HEADER: usize = 16 << 20;
/// The maximum number of bytes that one byte of text needs in memory, as 8-byte values that exist at the same time:
/// as read, on the grid, standardised.
const BYTES_A_BYTE: usize = 16;
/// The limit if the free memory is unknown.
const LIMIT: usize = 4 << 30;

/// Reads a file for [`super::series::Series::from_csv`].
///
/// # Errors
/// Those of [`read_text`], and [`Error::Read`].
pub(crate) fn read_file(path: &Path) -> Result<Vec<u8>> {
    let refuse = |source| Error::Read { path: path.to_owned(), source };
    let file = File::open(path).map_err(refuse)?;
    let size = file.metadata().map_err(refuse)?.len();
    if size > limit() as u64 {
        return Err(Error::TooLarge { file: path.display().to_string(), limit: limit() });
    }
    read_text(file, path)
}

/// Reads a whole stream, such as standard input, for [`super::series::Series::from_csv`] or
/// [`super::panel::Panel::from_csv`]. `name` is for messages.
///
/// An endless stream, or one that is not text, is an error before it fills the memory. The first line must end within
/// 16 MiB, and the numbers of the whole text must fit into the memory of this machine.
///
/// # Errors
/// [`Error::NotUtf8`] if there is a zero byte, [`Error::Header`] if the first line is too long, [`Error::TooLarge`],
/// [`Error::Read`].
pub fn read_text(mut from: impl Read, name: impl AsRef<Path>) -> Result<Vec<u8>> {
    read_at_most(&mut from, name.as_ref(), limit())
}

fn limit() -> usize {
    Device::cpu().free_bytes().map_or(LIMIT, |free| free / BYTES_A_BYTE)
}

fn read_at_most(from: &mut dyn Read, path: &Path, limit: usize) -> Result<Vec<u8>> {
    let file = || path.display().to_string();
    let refuse = |source| Error::Read { path: path.to_owned(), source };
    let mut text = Vec::new();
    loop {
        let begin = text.len();
        text.try_reserve(CHUNK).map_err(|_| refuse(io::ErrorKind::OutOfMemory.into()))?;
        let read = (&mut *from).take(CHUNK as u64).read_to_end(&mut text).map_err(refuse)?;
        if read == 0 {
            return Ok(text);
        }
        if let Some(at) = text[begin..].iter().position(|&byte| byte == 0) {
            let line = 1 + text[..begin + at].iter().filter(|&&byte| byte == b'\n').count() as u64;
            return Err(Error::NotUtf8 { file: file(), line });
        }
        let long = begin <= LONGEST_HEADER && text.len() > LONGEST_HEADER;
        if long && !text[..LONGEST_HEADER].iter().any(|byte| [b'\n', b'\r'].contains(byte)) {
            let problem = format!("no line ends within the first {} MiB", LONGEST_HEADER >> 20);
            return Err(Error::Header {
                file: file(),
                problem,
                fix: "write a CSV file with one line per row",
            });
        }
        if text.len() > limit {
            return Err(Error::TooLarge { file: file(), limit });
        }
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

    #[test]
    fn what_does_not_end_is_refused() {
        let refused = |from: &mut dyn Read, limit| {
            read_at_most(from, Path::new("a.csv"), limit).unwrap_err().to_string()
        };
        let zeros = refused(&mut io::repeat(0), usize::MAX);
        assert!(zeros.contains("a.csv, line 1: not UTF-8 text"), "{zeros}");
        let line = refused(&mut io::repeat(b'a'), usize::MAX);
        assert!(line.contains("no line ends within the first 16 MiB"), "{line}");
        let rows = refused(&mut io::repeat(b'\n'), 5 << 20);
        assert!(rows.contains("a.csv is larger than 5 MiB"), "{rows}");
        let file = b"time,a\n2020-01-01,1\n".repeat(200_000);
        assert_eq!(read_at_most(&mut file.as_slice(), Path::new("a.csv"), file.len()).unwrap(), file);
    }
}
