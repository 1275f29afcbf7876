//! Results of a process that later processes can use, on disk: compiled kernels, so that only the first process on a
//! machine waits for the compiler, and algorithms that were chosen for matrix products.
//!
//! The name of an entry is a hash of everything that it depends on (for machine code: source, options, architecture,
//! compiler version) and ends with its kind. Entries are written to a temporary file and renamed, so that concurrent
//! processes see complete ones. Each begins with a checksum of the rest; an entry that does not match is removed and
//! made again. Only the owner can access the folder, because machine code from it runs on the GPU.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::SystemTime;

use sha2::{Digest, Sha256};

/// The first bytes of an entry, which name the format.
const MAGIC: &[u8; 8] = b"refrain1";
/// Bytes of the checksum that follows.
const SUM: usize = 32;
/// The maximum number of bytes of all entries together.
const CAPACITY: u64 = 512 << 20;

/// FNV-1a, 64 bits. It distinguishes texts; it is no protection.
pub(super) fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |h, &b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3))
}

/// A folder of entries.
pub(super) struct Cache {
    folder: PathBuf,
    capacity: u64,
}

impl Cache {
    /// The cache of this user: `REFRAIN_CACHE`, or `refrain/kernels` in the user's cache folder. `None` if there is
    /// no such folder that belongs to this user alone, or if `REFRAIN_CACHE` is empty.
    pub(super) fn open() -> Option<&'static Cache> {
        static CACHE: OnceLock<Option<Cache>> = OnceLock::new();
        CACHE
            .get_or_init(|| {
                let folder = match std::env::var_os("REFRAIN_CACHE") {
                    Some(given) if given.is_empty() => return None,
                    Some(given) => PathBuf::from(given),
                    None => user_cache()?.join("refrain").join("kernels"),
                };
                Cache::at(folder, CAPACITY)
            })
            .as_ref()
    }

    pub(super) fn at(folder: PathBuf, capacity: u64) -> Option<Cache> {
        make_private(&folder).ok()?;
        Some(Cache { folder, capacity })
    }

    pub(super) fn path(&self, kind: &str, key: &[&[u8]]) -> PathBuf {
        let mut name = Sha256::new();
        for part in key {
            name.update((part.len() as u64).to_le_bytes());
            name.update(part);
        }
        let name: String = name.finalize().iter().take(20).map(|b| format!("{b:02x}")).collect();
        self.folder.join(name).with_extension(kind)
    }

    /// The entry for a key. A damaged one is removed.
    pub(super) fn get(&self, kind: &str, key: &[&[u8]]) -> Option<Vec<u8>> {
        let path = self.path(kind, key);
        let bytes = fs::read(&path).ok()?;
        let whole = bytes.strip_prefix(MAGIC).and_then(|rest| rest.split_at_checked(SUM));
        match whole {
            Some((sum, body)) if Sha256::digest(body)[..] == *sum => {
                // The oldest entries are removed first. Using an entry makes it young.
                let _ =
                    fs::File::options().append(true).open(&path).map(|f| f.set_modified(SystemTime::now()));
                Some(body.to_vec())
            }
            _ => {
                let _ = fs::remove_file(&path);
                None
            }
        }
    }

    /// Stores an entry. If the cache can't be written, that only costs time.
    pub(super) fn put(&self, kind: &str, key: &[&[u8]], body: &[u8]) {
        let _ = self.write(&self.path(kind, key), body);
        self.shrink();
    }

    fn write(&self, path: &Path, body: &[u8]) -> std::io::Result<()> {
        static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
        let unique = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let temporary = path.with_extension(format!("{}-{unique}.tmp", std::process::id()));
        let written = private_file(&temporary).and_then(|mut file| {
            file.write_all(MAGIC)?;
            file.write_all(&Sha256::digest(body))?;
            file.write_all(body)
        });
        let done = written.and_then(|()| fs::rename(&temporary, path));
        if done.is_err() {
            let _ = fs::remove_file(&temporary);
        }
        done
    }

    /// Removes the least recently used entries if all together are too large.
    fn shrink(&self) {
        let Ok(entries) = fs::read_dir(&self.folder) else { return };
        let mut files: Vec<(SystemTime, u64, PathBuf)> = entries
            .flatten()
            .filter_map(|e| {
                let data = e.metadata().ok()?;
                Some((data.modified().ok()?, data.len(), e.path()))
            })
            .collect();
        let mut total: u64 = files.iter().map(|f| f.1).sum();
        if total <= self.capacity {
            return;
        }
        files.sort();
        for (_, size, path) in files {
            if total <= self.capacity / 4 * 3 {
                break;
            }
            if fs::remove_file(path).is_ok() {
                total -= size;
            }
        }
    }
}

fn user_cache() -> Option<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    variable("XDG_CACHE_HOME")
        .filter(|p| p.is_absolute())
        .or_else(|| variable("HOME").map(|home| home.join(".cache")))
        .or_else(|| variable("LOCALAPPDATA"))
}

#[cfg(unix)]
fn make_private(folder: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    let data = fs::metadata(folder)?;
    // New files belong to the user of this process, so the owner of a new file shows whether the folder is somebody
    // else's.
    let probe = folder.join(format!(".owner-{}", std::process::id()));
    let owner = private_file(&probe).and_then(|f| Ok(f.metadata()?.uid()));
    let _ = fs::remove_file(&probe);
    if owner? != data.uid() {
        return Err(std::io::ErrorKind::PermissionDenied.into());
    }
    if data.permissions().mode() & 0o077 != 0 {
        fs::set_permissions(folder, fs::Permissions::from_mode(0o700))?;
    }
    Ok(())
}

#[cfg(not(unix))]
fn make_private(folder: &Path) -> std::io::Result<()> {
    fs::create_dir_all(folder)
}

#[cfg(unix)]
fn private_file(path: &Path) -> std::io::Result<fs::File> {
    use std::os::unix::fs::OpenOptionsExt;
    fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

#[cfg(not(unix))]
fn private_file(path: &Path) -> std::io::Result<fs::File> {
    fs::OpenOptions::new().write(true).create_new(true).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache(name: &str, capacity: u64) -> Cache {
        let folder = std::env::temp_dir().join(format!("refrain-cache-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        Cache::at(folder, capacity).unwrap()
    }

    #[test]
    fn an_entry_comes_back_under_its_key_alone() {
        let cache = cache("keys", CAPACITY);
        cache.put("cubin", &[b"ab", b"c"], b"code");
        assert_eq!(cache.get("cubin", &[b"ab", b"c"]).as_deref(), Some(&b"code"[..]));
        assert_eq!(cache.get("cubin", &[b"a", b"bc"]), None, "parts of a key run together");
        assert_eq!(cache.get("algorithm", &[b"ab", b"c"]), None, "kinds run together");
        fs::remove_dir_all(&cache.folder).unwrap();
    }

    #[test]
    fn a_broken_entry_is_removed() {
        let cache = cache("broken", CAPACITY);
        let path = cache.path("cubin", &[b"k"]);
        for damage in [0, 4, 12, 45, usize::MAX] {
            cache.put("cubin", &[b"k"], b"machine code");
            let mut bytes = fs::read(&path).unwrap();
            match bytes.get_mut(damage) {
                Some(byte) => *byte ^= 1,
                None => bytes.truncate(20),
            }
            fs::write(&path, bytes).unwrap();
            assert_eq!(cache.get("cubin", &[b"k"]), None);
            assert!(!path.exists());
        }
        fs::remove_dir_all(&cache.folder).unwrap();
    }

    #[test]
    fn the_entries_used_last_stay_when_room_is_short() {
        let cache = cache("full", 4000);
        for i in 0..5u8 {
            cache.put("cubin", &[&[i]], &[i; 700]);
            let age = SystemTime::now() - std::time::Duration::from_secs(100 - u64::from(i));
            let file = fs::File::options().append(true).open(cache.path("cubin", &[&[i]])).unwrap();
            file.set_modified(age).unwrap();
        }
        assert!(cache.get("cubin", &[&[0]]).is_some(), "which makes it young");
        cache.put("cubin", &[b"last"], &[9; 700]);
        assert!(cache.get("cubin", &[&[0]]).is_some());
        assert!(cache.get("cubin", &[b"last"]).is_some());
        assert!(cache.get("cubin", &[&[1]]).is_none());
        fs::remove_dir_all(&cache.folder).unwrap();
    }

    #[cfg(unix)]
    #[test]
    fn the_folder_and_its_entries_are_the_owners_alone() {
        use std::os::unix::fs::PermissionsExt;
        let cache = cache("owner", CAPACITY);
        cache.put("cubin", &[b"k"], b"code");
        let mode = |p: &Path| fs::metadata(p).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&cache.folder), mode(&cache.path("cubin", &[b"k"]))), (0o700, 0o600));
        fs::remove_dir_all(&cache.folder).unwrap();
    }
}
