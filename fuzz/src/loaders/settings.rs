//! Files of settings.

use std::path::Path;

use refrain_forecast::data::series::Series;

use super::{SETTINGS, message, table, text};
use crate::random::Random;

/// Keys and values of a panel's model.
const CROSS_ASSET: &str = "model = \"cross-asset\"\nprice = \"volume\"\nlabel-horizon = 1\nlabel-threshold = 0.5\nd-model = 4
heads = 2\nffn = 8\nlayers = 1\nfolds = 2\nembargo = 1\nclass-weights = \"balanced\"\ntemperature = 10.0\nlabel-change = \"relative\"
test-share = 0.1\nvalidation-share = 0.1\nmax-gap = 3\n";

/// What is not in the small settings.
const MORE: &str = "split = \"0.6,0.2,0.2\"\nseason = 4\nmax-gap = \"season\"\ndropout = 0.5\nnorm = \"layer\"\nend-padding = true
norm-position = \"pre\"\nactivation = \"relu\"\npositions = \"sinusoidal\"\nresidual-attention = true\nrevin = false
individual-head = true\naccumulate = 2\nprecision = \"bf16\"\nlr = 0.5\nschedule = \"cosine\"\nweight-decay = 0.0\nclip = 0.0
patience = 1\nseed = 7\nattention-dropout = 0.1\nhead-dropout = 0.1\nstrict = true\n";

/// Settings of either model, with some changes.
pub fn random(random: &mut Random) -> Vec<u8> {
    let lines: Vec<&str> = MORE.lines().collect();
    let more: Vec<&str> = lines.iter().copied().filter(|_| random.once_in(4)).collect();
    let whole = match random.below(3) {
        0 => format!("{CROSS_ASSET}{}", more.join("\n")),
        _ => format!("{SETTINGS}{}", more.join("\n")),
    };
    // A value of another size is more likely to get far than what is no TOML.
    let numbers = [
        "0",
        "1",
        "3",
        "16777216",
        "65536",
        "4294967296",
        "9223372036854775807",
        "-1",
        "1e308",
        "1e-30",
        "nan",
        "inf",
        "0.5",
    ];
    let value = |line: &str, random: &mut Random| match line.split_once('=') {
        Some((key, _)) if random.once_in(8) => format!("{key}= {}\n", random.of(&numbers)),
        _ => format!("{line}\n"),
    };
    let other: String = whole.lines().map(|line| value(line, random)).collect();
    if random.once_in(3) { text::changed(&other, random) } else { other.into_bytes() }
}

/// Reads settings as far as the first step of their training.
pub fn check(bytes: &[u8], series: &Series, place: &Path) -> Result<(), String> {
    let file = place.join("settings.toml");
    std::fs::write(&file, bytes).map_err(|e| e.to_string())?;
    match refrain_cli::readers::settings(&file, series, table::labelled().as_bytes()) {
        Ok(()) => Ok(()),
        Err(error) => message(&error),
    }
}
