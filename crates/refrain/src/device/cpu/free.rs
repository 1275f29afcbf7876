//! How much memory the host has free.

use std::fs::read_to_string;
use std::path::{Path, PathBuf};

/// Bytes that this process can still allocate, if the system reports it (Linux does): the minimum over the machine,
/// the control groups (containers) of the process, and its own limit.
pub(crate) fn free_bytes() -> Option<usize> {
    let left = [machine(), groups(), address_space()];
    left.into_iter().flatten().min().map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX))
}

/// Memory that is free or can be reclaimed, plus swap.
fn machine() -> Option<u64> {
    let text = read_to_string("/proc/meminfo").ok()?;
    let kibibytes = |key: &str| text.lines().find_map(|line| number(line.strip_prefix(key)?));
    Some((kibibytes("MemAvailable:")? + kibibytes("SwapFree:").unwrap_or(0)).saturating_mul(1024))
}

/// The first number in a text.
fn number(text: &str) -> Option<u64> {
    text.split_whitespace().next()?.parse().ok()
}

/// The minimum over the process's control groups and all their parents.
fn groups() -> Option<u64> {
    let text = read_to_string("/proc/self/cgroup").ok()?;
    let of_line = |line: &str| {
        // The format is number:controllers:path. Version 2 has number 0 and no controllers.
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?);
        let files = match controllers {
            "" => {
                Files { root: "/sys/fs/cgroup", most: "memory.max", used: "memory.current", cache: "file " }
            }
            _ if controllers.split(',').any(|name| name == "memory") => Files {
                root: "/sys/fs/cgroup/memory",
                most: "memory.limit_in_bytes",
                used: "memory.usage_in_bytes",
                cache: "total_cache ",
            },
            _ => return None,
        };
        let inner = Path::new(files.root).join(path.trim_start_matches('/'));
        let folders = inner.ancestors().filter(|folder| folder.starts_with(files.root));
        folders.filter_map(|folder| files.left(folder.to_owned())).min()
    };
    text.lines().filter_map(of_line).min()
}

/// The files in which a version of control groups reports the limit and the use of a group.
struct Files {
    root: &'static str,
    most: &'static str,
    used: &'static str,
    /// File cache, which the system frees on demand.
    cache: &'static str,
}

impl Files {
    /// How much a group has left. `None` without a limit.
    fn left(&self, folder: PathBuf) -> Option<u64> {
        let of = |file: &str| read_to_string(folder.join(file)).ok();
        let most = number(&of(self.most)?)?;
        let used = number(&of(self.used)?)?;
        let statistics = of("memory.stat").unwrap_or_default();
        let cache = statistics.lines().find_map(|line| number(line.strip_prefix(self.cache)?)).unwrap_or(0);
        Some(most.saturating_sub(used.saturating_sub(cache)))
    }
}

/// What is left of the limit of `ulimit -v`.
fn address_space() -> Option<u64> {
    let limits = read_to_string("/proc/self/limits").ok()?;
    let most = limits.lines().find_map(|line| number(line.strip_prefix("Max address space")?))?;
    let status = read_to_string("/proc/self/status").ok()?;
    let used = status.lines().find_map(|line| number(line.strip_prefix("VmSize:")?))?;
    Some(most.saturating_sub(used.saturating_mul(1024)))
}

#[cfg(test)]
mod tests {
    /// This machine has some memory left, and not more than any machine has.
    #[cfg(target_os = "linux")]
    #[test]
    fn linux_tells_what_is_left() {
        let bytes = super::free_bytes().unwrap();
        assert!((1 << 20..1 << 50).contains(&bytes), "{bytes}");
    }
}
