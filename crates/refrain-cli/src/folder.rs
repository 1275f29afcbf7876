//! The run folder: one process at a time uses it, and leftovers of dead processes are removed.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use refrain_nn::checkpoint::{remove_leftovers, write_atomic};

use crate::console::note;
use crate::error::{Error, Result};
use crate::run::{self, LOCK};

/// The folder of one run, locked by this process, or by the first of the processes that train together.
#[derive(Debug, Clone)]
pub struct RunFolder {
    path: PathBuf,
    /// Released when the last handle is dropped. `None` if another process has it.
    lock: Option<Arc<File>>,
}

impl RunFolder {
    /// Creates the folder of a new run. A folder with content is refused, unless the content is that of a run that
    /// ended before its first save.
    pub fn create(wanted: Option<&Path>, stem: &str) -> Result<RunFolder> {
        let Some(path) = wanted else {
            return RunFolder::hold(&next_free(Path::new("runs"), stem)?);
        };
        std::fs::create_dir_all(path).map_err(|source| Error::write(path, source))?;
        // Content that does not belong to a run is left alone.
        if !path.join(LOCK).exists() {
            check_free(path)?;
        }
        let folder = RunFolder::hold(path)?;
        check_free(path)?;
        remove_empty(path);
        Ok(folder)
    }

    /// The folder in which another process writes this run.
    pub fn of_another(path: &Path) -> RunFolder {
        RunFolder { path: path.to_owned(), lock: None }
    }

    /// Locks the folder of an existing run.
    pub fn open(path: &Path) -> Result<RunFolder> {
        match run::is_begun(path) {
            true => RunFolder::hold(path),
            false => Err(run::no_run(path)),
        }
    }

    /// Locks the folder of several runs, which has a file of this name.
    pub fn open_with(path: &Path, name: &str, fix: &'static str) -> Result<RunFolder> {
        match path.join(name).is_file() {
            true => RunFolder::hold(path),
            false => Err(Error::run(path, format!("there is no {name} in this folder"), fix)),
        }
    }

    /// Locks the folder, and removes files that an earlier process did not finish.
    fn hold(path: &Path) -> Result<RunFolder> {
        let lock = Arc::new(lock(path)?);
        for folder in std::iter::once(path.to_owned()).chain(inner_folders(path)) {
            remove_leftovers(&folder, &run::FILES)?;
        }
        Ok(RunFolder { path: path.to_owned(), lock: Some(lock) })
    }

    /// A folder inside this one, which is created if needed, if this process writes the run.
    pub fn inside(&self, name: &str) -> Result<RunFolder> {
        let path = self.path.join(name);
        if self.lock.is_none() {
            return Ok(RunFolder::of_another(&path));
        }
        std::fs::create_dir_all(&path).map_err(|source| Error::write(&path, source))?;
        remove_leftovers(&path, &run::FILES)?;
        Ok(RunFolder { path, lock: self.lock.clone() })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes a file, if this process writes the run.
    pub fn write(&self, name: &str, content: &[u8]) -> Result<()> {
        if self.lock.is_none() {
            return Ok(());
        }
        Ok(write_atomic(&self.path.join(name), content)?)
    }

    /// Adds to the end of a file, if this process writes the run.
    pub fn append(&self, name: &str, content: &[u8]) -> Result<()> {
        if self.lock.is_none() {
            return Ok(());
        }
        let path = self.path.join(name);
        let opened = OpenOptions::new().append(true).create(true).open(&path);
        opened.and_then(|mut file| file.write_all(content)).map_err(|source| Error::write(&path, source))
    }
}

/// Locks a folder for the life of this process.
fn lock(folder: &Path) -> Result<File> {
    let path = folder.join(LOCK);
    let refuse = |source| Error::write(&path, source);
    let mut options = OpenOptions::new();
    let mut file = options.read(true).write(true).create(true).truncate(false).open(&path).map_err(refuse)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            // The holder may be about to write who it is.
            std::thread::sleep(Duration::from_millis(50));
            let holder = std::fs::read_to_string(&path).unwrap_or_default();
            let holder = if holder.is_empty() { "another process" } else { holder.trim_end() };
            return Err(Error::Taken { path: folder.to_owned(), holder: holder.to_owned() });
        }
        Err(TryLockError::Error(error)) if error.kind() == ErrorKind::Unsupported => {
            note(format!(
                "warning: {}: this file system has no locks; make sure that no other process trains in this folder",
                folder.display()
            ));
        }
        Err(TryLockError::Error(error)) => return Err(refuse(error)),
    }
    let name = format!("process {} on {}\n", std::process::id(), host());
    file.set_len(0).and_then(|()| file.write_all(name.as_bytes())).map_err(refuse)?;
    Ok(file)
}

/// The name of this machine, if known.
pub fn host() -> String {
    let linux = std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
    let named = linux.or_else(|| std::env::var("HOSTNAME").or_else(|_| std::env::var("COMPUTERNAME")).ok());
    let named = named.map(|name| name.trim().to_owned()).filter(|name| !name.is_empty());
    named.unwrap_or_else(|| "this machine".to_owned())
}

/// The folders that a run makes inside its folder, and those inside them.
fn inner_folders(path: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
    let inner = entries.filter(|entry| {
        let name = entry.file_name();
        name.to_str().is_some_and(run::is_inner_folder) && entry.file_type().is_ok_and(|it| it.is_dir())
    });
    inner.flat_map(|entry| std::iter::once(entry.path()).chain(inner_folders(&entry.path()))).collect()
}

/// Refuses a folder with more content than that of a run that ended before its first save.
fn check_free(path: &Path) -> Result<()> {
    let inner = inner_folders(path);
    for folder in std::iter::once(path).chain(inner.iter().map(PathBuf::as_path)) {
        let entries = std::fs::read_dir(folder).map_err(|source| Error::read(folder, source))?;
        for entry in entries {
            let entry = entry.map_err(|source| Error::read(folder, source))?;
            let name = entry.file_name();
            let left = name
                .to_str()
                .is_some_and(|name| name == LOCK || refrain_nn::checkpoint::is_leftover(name, &run::FILES));
            if !left && !inner.contains(&entry.path()) {
                return Err(Error::run(
                    path,
                    "the folder is not empty, and refrain does not overwrite anything",
                    "choose another --out, or resume the run in it with --resume",
                ));
            }
        }
    }
    Ok(())
}

/// Removes empty inner folders, the innermost first.
fn remove_empty(path: &Path) {
    inner_folders(path).iter().rev().for_each(|folder| drop(std::fs::remove_dir(folder)));
}

/// `runs/<stem>-<number>` with the first free number. Creating the folder reserves it.
fn next_free(runs: &Path, stem: &str) -> Result<PathBuf> {
    std::fs::create_dir_all(runs).map_err(|source| Error::write(runs, source))?;
    let mut number = 1_u64;
    loop {
        let path = runs.join(format!("{stem}-{number}"));
        match std::fs::create_dir(&path) {
            Ok(()) => return Ok(path),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => number += 1,
            Err(source) => return Err(Error::write(&path, source)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_numbered_and_never_share_a_folder() {
        let runs = tempfile::tempdir().unwrap();
        let paths = [(); 3].map(|()| next_free(runs.path(), "a").unwrap());
        assert_eq!(paths.map(|path| path.file_name().unwrap().to_owned()), ["a-1", "a-2", "a-3"]);
        let error = RunFolder::create(Some(runs.path()), "a").unwrap_err().to_string();
        assert!(error.contains("not empty") && error.contains("--resume"), "{error}");
        assert!(!runs.path().join(LOCK).exists());
    }

    #[test]
    fn a_folder_is_held_until_its_last_handle_is_dropped() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("run");
        let first = RunFolder::create(Some(&path), "a").unwrap();
        let inside = first.inside("fold-1").unwrap();
        drop(first);
        let error = RunFolder::create(Some(&path), "a").unwrap_err().to_string();
        assert!(error.contains(&format!("process {} on ", std::process::id())), "{error}");
        drop(inside);
        // What the run left is empty, so another run may use the folder.
        RunFolder::create(Some(&path), "a").unwrap();
        assert!(!path.join("fold-1").exists());
    }
}
