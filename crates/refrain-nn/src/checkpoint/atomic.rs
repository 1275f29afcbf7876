//! Atomic file writes: a file has either its old content or its new content, never a part of it.

use std::fs::OpenOptions;
use std::io::{BufWriter, Cursor, Seek, Write};
use std::path::Path;

use crate::error::{Error, Result};

/// How the name of a temporary file begins. Then come the name of the file that it will replace and some random
/// characters.
const PREFIX: &str = ".refrain-";
const SUFFIX: &str = ".tmp";
/// How many random characters.
const RANDOM: usize = 6;

/// Whether `name` is a temporary file that [`write_atomic`] made for one of these files. (Earlier versions did not
/// put the file's name into it; such a name matches any file.)
pub fn is_leftover(name: &str, files: &[&str]) -> bool {
    let inner = name.strip_prefix(PREFIX).and_then(|name| name.strip_suffix(SUFFIX));
    inner.is_some_and(|inner| {
        let random = |text: &str| text.len() == RANDOM && text.bytes().all(|b| b.is_ascii_alphanumeric());
        let of_file = |file: &&str| {
            inner.strip_prefix(*file).and_then(|rest| rest.strip_prefix('-')).is_some_and(random)
        };
        random(inner) || files.iter().any(of_file)
    })
}

/// Removes the temporary files that a killed process left in a folder for these files. No other process may write the
/// files at the same time.
///
/// # Errors
/// If the folder cannot be read, or a file cannot be removed.
pub fn remove_leftovers(folder: &Path, files: &[&str]) -> Result<()> {
    for entry in std::fs::read_dir(folder).map_err(Error::io("read", folder))? {
        let entry = entry.map_err(Error::io("read", folder))?;
        if entry.file_name().to_str().is_some_and(|name| is_leftover(name, files)) {
            std::fs::remove_file(entry.path()).map_err(Error::io("remove", &entry.path()))?;
        }
    }
    Ok(())
}

/// Writes a file atomically: at any moment, also after a crash, the file has either the complete old content or the
/// complete new one. The content is written to a temporary file in the same folder and flushed to disk; then the file
/// is renamed.
///
/// If `path` is a symbolic link, the link stays and the file that it points to is replaced. A path that is neither a
/// file nor a folder, such as `/dev/stdout` or a pipe, is written to directly.
///
/// # Errors
/// If the folder is missing or not writable, the disk is full, or `path` is a folder. The old file stays.
pub fn write_atomic(path: &Path, content: &[u8]) -> Result<()> {
    write_atomic_with(path, |file| file.write_all(content).map_err(Error::io("write", path)))
}

/// A file that is written in pieces.
pub(super) trait WriteSeek: Write + Seek {}

impl<T: Write + Seek> WriteSeek for T {}

/// [`write_atomic`] of what `write` writes. If it fails, the old file stays.
pub(super) fn write_atomic_with(
    path: &Path,
    write: impl FnOnce(&mut dyn WriteSeek) -> Result<()>,
) -> Result<()> {
    if path.metadata().is_ok_and(|it| !it.is_file() && !it.is_dir()) {
        let mut content = Cursor::new(Vec::new());
        write(&mut content)?;
        let mut stream = OpenOptions::new().write(true).open(path).map_err(Error::io("write", path))?;
        return stream.write_all(content.get_ref()).map_err(Error::io("write", path));
    }
    let place = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let folder = match place.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let mut builder = tempfile::Builder::new();
    builder.rand_bytes(RANDOM);
    let name: String = place.file_name().unwrap_or_default().to_string_lossy().chars().take(80).collect();
    let begin = format!("{PREFIX}{name}-");
    builder.prefix(&begin).suffix(SUFFIX);
    // The permissions of a normal new file (as the umask allows). A temporary file would be private.
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    let file = builder.tempfile_in(folder).map_err(Error::io("write into", folder))?;
    let mut buffered = BufWriter::with_capacity(1 << 20, file.as_file());
    write(&mut buffered)?;
    buffered.flush().map_err(Error::io("write", path))?;
    drop(buffered);
    file.as_file().sync_all().map_err(Error::io("write", path))?;
    file.persist(&place).map_err(|e| e.error).map_err(Error::io("write", path))?;
    // Only flushing the folder makes the rename durable.
    #[cfg(unix)]
    std::fs::File::open(folder).and_then(|f| f.sync_all()).map_err(Error::io("write into", folder))?;
    Ok(())
}
