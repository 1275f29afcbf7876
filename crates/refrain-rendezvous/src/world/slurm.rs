//! Slurm's lists of hosts: `node[01-03,07],other5`.

/// The first host of a list, or `None` if it is none. Numbers keep their zeros.
pub fn first_host(list: &str) -> Option<String> {
    let mut host = String::new();
    let mut rest = list.trim();
    loop {
        match rest.find(['[', ']', ',']) {
            None => {
                host += rest;
                break;
            }
            Some(at) => {
                host += &rest[..at];
                if rest[at..].starts_with(',') {
                    break;
                }
                // One of a bracket's ranges: its first number is in the first host.
                let (ranges, after) = rest[at..].strip_prefix('[')?.split_once(']')?;
                let first = ranges.split([',', '-']).next()?;
                if first.is_empty() || !first.bytes().all(|b| b.is_ascii_digit()) {
                    return None;
                }
                host += first;
                rest = after;
            }
        }
    }
    let valid = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
    (!host.is_empty() && host.chars().all(valid)).then_some(host)
}

#[cfg(test)]
mod tests {
    use super::first_host;

    #[test]
    fn the_first_host_of_a_list_is_found() {
        for (list, first) in [
            ("node7", "node7"),
            ("node7,node8", "node7"),
            ("node[01-03,07],other5", "node01"),
            ("node[8,10-12]", "node8"),
            ("rack[2-3]n[004-128]-ib", "rack2n004-ib"),
            ("gpu-a.cluster.example,gpu-b", "gpu-a.cluster.example"),
            ("a[1]", "a1"),
        ] {
            assert_eq!(first_host(list).as_deref(), Some(first), "{list}");
        }
    }

    #[test]
    fn what_is_no_list_has_no_first_host() {
        for list in ["", ",a", "node[", "node[01", "node]1[", "node[]", "node[a-b]", "no de", "node[[1]]"] {
            assert_eq!(first_host(list), None, "{list}");
        }
    }
}
