//! Names of fused launches.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

/// `fused(mul, add)`. Names of operations live as long as the process. There is one for each chain of operations,
/// however many programs have it.
pub(super) fn name<'a>(parts: impl Iterator<Item = &'a str>) -> &'static str {
    static NAMES: Mutex<Option<HashSet<&'static str>>> = Mutex::new(None);
    let name = format!("fused({})", parts.collect::<Vec<_>>().join(", "));
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    let names = names.get_or_insert_default();
    match names.get(name.as_str()) {
        Some(known) => known,
        None => {
            let name: &'static str = name.leak();
            names.insert(name);
            name
        }
    }
}
