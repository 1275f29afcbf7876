//! A safetensors file that is open for reading. Only its header is in memory; the values are read where they are needed.

use std::cmp::Reverse;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};

use crate::error::{Error, Result};

/// The length of the header stands in so many bytes before it.
const LENGTH: u64 = 8;
/// The format allows no longer header.
pub(super) const LONGEST_HEADER: u64 = 100_000_000;

pub(super) struct TensorFile {
    path: PathBuf,
    file: File,
    header: Metadata,
    /// Where the values begin.
    values: u64,
    /// When it was last changed, where the system says it.
    modified: Option<SystemTime>,
}

/// A tensor of a file.
#[derive(Clone, Copy)]
pub(super) struct FileTensor<'a> {
    file: &'a TensorFile,
    info: &'a TensorInfo,
}

impl TensorFile {
    /// Reads the header and checks that the file is whole.
    pub(super) fn open(path: &Path) -> Result<TensorFile> {
        let read = |e| Error::io("read", path)(e);
        // A device such as /dev/zero has no end.
        if path.metadata().is_ok_and(|it| !it.is_file()) {
            return Err(Error::checkpoint(
                path,
                "it is not a file; pass the path of a safetensors file, or the folder that a checkpoint was written to",
            ));
        }
        let broken = |what: String| {
            Error::checkpoint(
                path,
                format!(
                    "not a whole safetensors file ({what}): it is cut off or not a safetensors file; copy it again, or use an earlier checkpoint"
                ),
            )
        };
        let mut file = File::open(path).map_err(read)?;
        let metadata = file.metadata().map_err(read)?;
        let (bytes, modified) = (metadata.len(), metadata.modified().ok());
        let mut length = [0; LENGTH as usize];
        if bytes < LENGTH {
            return Err(broken(format!("it has {bytes} bytes")));
        }
        file.read_exact(&mut length).map_err(read)?;
        let length = u64::from_le_bytes(length);
        if length > LONGEST_HEADER.min(bytes - LENGTH) {
            return Err(broken(format!("its header would have {length} bytes, and the file has {bytes}")));
        }
        let mut header = vec![0; length as usize];
        file.read_exact(&mut header).map_err(read)?;
        let header: Metadata = serde_json::from_slice(&header).map_err(|e| broken(e.to_string()))?;
        let values = LENGTH + length;
        if header.data_len() as u64 != bytes - values {
            let (named, found) = (header.data_len(), bytes - values);
            return Err(broken(format!("its header names {named} bytes of values, and it has {found}")));
        }
        Ok(TensorFile { path: path.to_owned(), file, header, values, modified })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// A text of the header.
    pub(super) fn text(&self, key: &str) -> Option<&str> {
        self.header.metadata().as_ref()?.get(key).map(String::as_str)
    }

    /// The names of the tensors in the order of their values. Tensors without values, which are all at one place, are in the
    /// order in which they are written: wide dtypes first, then by name.
    pub(super) fn names(&self) -> Vec<String> {
        let mut names = self.header.offset_keys();
        names.sort_by_key(|name| {
            self.header
                .info(name)
                .map(|info| (info.data_offsets, Reverse(info.dtype.bitsize()), name.clone()))
        });
        names
    }

    pub(super) fn tensor(&self, name: &str) -> Option<FileTensor<'_>> {
        Some(FileTensor { file: self, info: self.header.info(name)? })
    }
}

impl<'a> FileTensor<'a> {
    pub(super) fn path(&self) -> &'a Path {
        &self.file.path
    }

    pub(super) fn dtype(&self) -> Dtype {
        self.info.dtype
    }

    pub(super) fn shape(&self) -> &'a [usize] {
        &self.info.shape
    }

    /// How many bytes its values have.
    pub(super) fn bytes(&self) -> usize {
        self.info.data_offsets.1 - self.info.data_offsets.0
    }

    /// Reads its bytes from `first` on. Several threads may read at the same time.
    pub(super) fn read(&self, first: usize, into: &mut [u8]) -> Result<()> {
        let at = self.file.values + (self.info.data_offsets.0 + first) as u64;
        read_exact_at(&self.file.file, into, at).map_err(|e| match e.kind() {
            io::ErrorKind::UnexpectedEof => Error::checkpoint(
                self.file.path(),
                "it became shorter while it was read; copy it again, and write files under a new name before you rename them",
            ),
            _ => Error::io("read", self.file.path())(e),
        })
    }

    /// Returns an error if the file was changed in place since it was opened, so that its values may be of two states.
    pub(super) fn check_unchanged(&self) -> Result<()> {
        let file = self.file;
        let metadata = file.file.metadata().map_err(Error::io("read", &file.path))?;
        if metadata.modified().ok() == file.modified {
            return Ok(());
        }
        Err(Error::checkpoint(
            &file.path,
            "it was changed while it was read; load it again, and write files under a new name before you rename them",
        ))
    }

    /// All of its bytes, if they are few.
    pub(super) fn whole(&self) -> Result<Vec<u8>> {
        let mut bytes = vec![0; self.bytes()];
        self.read(0, &mut bytes)?;
        Ok(bytes)
    }
}

#[cfg(unix)]
fn read_exact_at(file: &File, into: &mut [u8], at: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, into, at)
}

#[cfg(windows)]
fn read_exact_at(file: &File, mut into: &mut [u8], mut at: u64) -> io::Result<()> {
    while !into.is_empty() {
        match std::os::windows::fs::FileExt::seek_read(file, into, at)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            read => {
                into = &mut into[read..];
                at += read as u64;
            }
        }
    }
    Ok(())
}
