//! Files that are there whole or not at all.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;

use crate::error::{Error, Result};

/// Writes a file so that at any moment, also after a crash, either the old content or the new one is there
/// whole: into a temporary file in the same folder, to the disk, and then renamed.
///
/// A symbolic link stays one, the file that it names is replaced. What is neither file nor folder, such as
/// `/dev/stdout` or a pipe, has no old content to keep: it is written to, never replaced.
///
/// # Errors
/// If the folder is missing or not writable, the disk is full, or `path` is a folder. The old file stays.
pub fn write_atomic(path: &Path, content: &[u8]) -> Result<()> {
    if path.metadata().is_ok_and(|it| !it.is_file() && !it.is_dir()) {
        let mut stream = OpenOptions::new().write(true).open(path).map_err(Error::io("write", path))?;
        return stream.write_all(content).map_err(Error::io("write", path));
    }
    let place = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let folder = match place.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let mut builder = tempfile::Builder::new();
    builder.prefix(".refrain-").suffix(".tmp");
    // The permissions of any new file, as the umask leaves them; a temporary file is private otherwise.
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    let mut file = builder.tempfile_in(folder).map_err(Error::io("write into", folder))?;
    file.write_all(content).map_err(Error::io("write", path))?;
    file.as_file().sync_all().map_err(Error::io("write", path))?;
    file.persist(&place).map_err(|e| e.error).map_err(Error::io("write", path))?;
    // The rename itself reaches the disk with the folder.
    #[cfg(unix)]
    std::fs::File::open(folder).and_then(|f| f.sync_all()).map_err(Error::io("write into", folder))?;
    Ok(())
}
