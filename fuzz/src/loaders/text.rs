//! Texts that are a little different, or a little smaller.

use crate::random::Random;

/// What tables and settings stumble over.
pub const CELLS: [&str; 54] = [
    "",
    "NA",
    "nan",
    "-nan",
    "inf",
    "-Infinity",
    "0",
    "-0",
    "1",
    "-1",
    "1e308",
    "-1e39",
    "3e38",
    "1e-320",
    "1e-30",
    "16777216",
    "65536",
    "18446744073709551615",
    "-9223372036854775808",
    "9999999999999999999999",
    "0x10",
    "1,5",
    "\"",
    "\"\"",
    "'",
    "=cmd|' /C calc'!A0",
    "@sum(a1)",
    "\u{feff}",
    "\0",
    "\u{1f642}",
    "time",
    "unique_id",
    "label",
    "9999-12-31 23:59:59.999999999",
    "-9999-01-01",
    "0000-01-01T00:00:00Z",
    "2020-02-29",
    "2021-02-29",
    "2020-01-01T00:00:00+25:59",
    "2020-W01-1",
    "true",
    "[]",
    "{}",
    "null",
    "<NA>",
    "1.5,5",
    "1467331200",
    "1467331200000",
    "2024Q1",
    "27.10.2024 02:30",
    "03/10/2024 02:30",
    "2024-10-27 02:30+01:00",
    "#",
    ";",
];

/// Some changes, each of a line, a cell or a byte.
pub fn changed(text: &str, random: &mut Random) -> Vec<u8> {
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    for _ in 0..random.below(4) {
        if lines.is_empty() {
            break;
        }
        let (at, other) = (random.below(lines.len()), random.below(lines.len()));
        match random.below(8) {
            0 => drop(lines.remove(at)),
            1 => lines.insert(at, lines[other].clone()),
            2 => lines.swap(at, other),
            3 => drop(lines.drain(at.min(other)..at.max(other))),
            4 => lines.truncate(at + 1),
            _ => lines[at] = cell_changed(&lines[at], random),
        }
    }
    let mut bytes = lines.join(random.of(&["\n", "\n", "\n", "\r\n", "\r"])).into_bytes();
    for _ in 0..[0, 0, 0, 1, 2][random.below(5)] {
        if bytes.is_empty() {
            break;
        }
        let at = random.below(bytes.len());
        match random.below(3) {
            0 => bytes[at] ^= 1 << random.below(8),
            1 => drop(bytes.remove(at)),
            _ => bytes.insert(at, random.below(256) as u8),
        }
    }
    bytes
}

/// A line with another cell, between what separates cells in tables and settings.
fn cell_changed(line: &str, random: &mut Random) -> String {
    let separator = random.of(&[",", ",", ",", ";", "=", " "]);
    let mut cells: Vec<&str> = line.split(separator).collect();
    let (at, new) = (random.below(cells.len()), random.of(&CELLS));
    match random.below(6) {
        0 => cells.insert(at, new),
        1 => drop(cells.remove(at)),
        _ => cells[at] = new,
    }
    cells.join(separator)
}

/// Without some of its lines, the shortest first; where they are no commands also without some of its bytes, once they
/// are few.
pub fn smaller(bytes: &[u8], commands: bool) -> Vec<Vec<u8>> {
    const FEW: usize = 400;
    let lines: Vec<&[u8]> = bytes.split_inclusive(|&byte| byte == b'\n').collect();
    let mut all = without(&lines);
    if !commands && bytes.len() <= FEW {
        let single: Vec<&[u8]> = bytes.chunks(1).collect();
        all.extend(without(&single));
    }
    all.sort_by_key(Vec::len);
    all
}

/// Without one half, one quarter, and so on down to a single part.
fn without(parts: &[&[u8]]) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    let mut size = parts.len().div_ceil(2);
    while size > 0 && parts.len() > 1 {
        for begin in (0..parts.len()).step_by(size) {
            let end = (begin + size).min(parts.len());
            all.push([&parts[..begin], &parts[end..]].concat().concat());
        }
        size /= 2;
    }
    all
}
