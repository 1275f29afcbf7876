//! What every target shares: the corpus, the time limit, panics, and making a failing input smaller.

use std::any::Any;
use std::panic::{self, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{env, fs};

use crate::memory;
use crate::watchdog::Watchdog;

/// Something to try.
pub struct Input {
    /// What it is, as the extension of its file: `csv`, `program`.
    pub kind: String,
    /// The input itself.
    pub bytes: Vec<u8>,
}

/// What an input may take.
#[derive(Clone, Copy)]
pub struct Limits {
    /// From its begin to its end; a process that takes ten times as long is ended.
    pub time: Duration,
    /// Memory beside what was in use before.
    pub bytes: usize,
}

/// A part of refrain under random inputs.
pub trait Target {
    /// The name, also of its folder in the corpus.
    fn name(&self) -> &'static str;

    /// The random input that a number stands for.
    fn make(&self, number: u64) -> Input;

    /// Tries an input; what is wrong with its outcome. A panic counts as a failure, too.
    fn check(&self, input: &Input) -> Result<(), String>;

    /// What an input may take.
    fn limits(&self, _input: &Input) -> Limits {
        Limits { time: Duration::from_secs(60), bytes: usize::MAX }
    }

    /// Inputs that are a little smaller, the smallest first: of a failing input, the first that fails as well takes
    /// its place.
    fn smaller(&self, _input: &Input) -> Vec<Input> {
        Vec::new()
    }
}

/// How long a failing input is made smaller.
const SHRINKING: Duration = Duration::from_secs(30);

/// The random number after `state` (SplitMix64: Steele, Lea, Flood, "Fast splittable pseudorandom number generators",
/// 2014).
pub fn mix(state: u64) -> u64 {
    let z = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A target at work.
pub struct Run<'a> {
    target: &'a dyn Target,
    verbose: bool,
    watchdog: Watchdog,
}

/// The folder of this crate.
pub fn folder() -> PathBuf {
    env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into()).into()
}

impl<'a> Run<'a> {
    /// A run of a target; `verbose` names each input before it is tried.
    pub fn new(target: &'a dyn Target, verbose: bool) -> Result<Run<'a>, String> {
        let failures = folder().join("failures");
        fs::create_dir_all(&failures).map_err(|e| format!("{}: {e}", failures.display()))?;
        Ok(Run { target, verbose, watchdog: Watchdog::new(target.name()) })
    }

    /// Tries the corpus, then new inputs for some time; what was done.
    pub fn all(&self, seed: u64, time: Duration) -> Result<String, String> {
        let name = self.target.name();
        let corpus = folder().join("corpus").join(name);
        let mut files: Vec<PathBuf> = fs::read_dir(&corpus)
            .map_err(|e| format!("{}: {e}", corpus.display()))?
            .filter_map(|entry| Some(entry.ok()?.path()))
            .collect();
        files.sort();
        files.iter().try_for_each(|file| self.file(file).map(drop))?;
        let begin = Instant::now();
        let first = mix(seed);
        let mut tried = 0u64;
        while begin.elapsed() < time {
            let number = first.wrapping_add(tried);
            if self.verbose {
                eprintln!("{name}: input {tried} of seed {seed}");
            }
            let input = self.target.make(number);
            if let Err(message) = self.check(&input) {
                return Err(self.failure(&format!("input {tried} of seed {seed}"), number, input, &message));
            }
            tried += 1;
        }
        Ok(format!("{name}: {} inputs of the corpus and {tried} of seed {seed} hold", files.len()))
    }

    /// Tries one file.
    pub fn file(&self, file: &Path) -> Result<String, String> {
        let shown = file.display();
        if self.verbose {
            eprintln!("{}: {shown}", self.target.name());
        }
        let bytes = fs::read(file).map_err(|e| format!("{shown}: {e}"))?;
        let kind = file.extension().unwrap_or_default().to_string_lossy().into_owned();
        self.check(&Input { kind, bytes }).map_err(|message| format!("{shown}: {message}"))?;
        Ok(format!("{shown} holds"))
    }

    fn check(&self, input: &Input) -> Result<(), String> {
        let told = |panic: Box<dyn Any + Send>| {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
            format!("panicked: {text}")
        };
        let Limits { time, bytes } = self.target.limits(input);
        self.watchdog.begin(input, time)?;
        let (begin, before) = (Instant::now(), memory::watch());
        let outcome = panic::catch_unwind(AssertUnwindSafe(|| self.target.check(input)));
        let (took, asked) = (begin.elapsed(), memory::most().saturating_sub(before));
        self.watchdog.end();
        outcome.unwrap_or_else(|p| Err(told(p)))?;
        if took > time {
            return Err(format!("took {took:.1?}, and should take at most {time:.1?}"));
        }
        if asked > bytes {
            return Err(format!("asked for {asked} bytes of memory, and should for at most {bytes}"));
        }
        Ok(())
    }

    /// Makes a failing input smaller and writes it down; what to print.
    fn failure(&self, which: &str, number: u64, mut input: Input, message: &str) -> String {
        let mut message = message.to_string();
        // The same panic again and again would hide the rest.
        panic::set_hook(Box::new(|_| ()));
        let begin = Instant::now();
        'smaller: while begin.elapsed() < SHRINKING {
            for smaller in self.target.smaller(&input) {
                if let Err(now) = self.check(&smaller) {
                    (input, message) = (smaller, now);
                    continue 'smaller;
                }
                if begin.elapsed() > SHRINKING {
                    break;
                }
            }
            break;
        }
        let _ = panic::take_hook();
        let name = self.target.name();
        let failures = folder().join("failures");
        let file = failures.join(format!("{name}-{number:016x}.{}", input.kind));
        let written = fs::create_dir_all(&failures).and_then(|()| fs::write(&file, &input.bytes));
        let place = match written {
            Ok(()) => format!(
                "cargo run -p refrain-fuzz -- {name} --input {} tries it again; in fuzz/corpus/{name}/ it is tried in every run",
                file.display()
            ),
            Err(e) => format!("{}: {e}", file.display()),
        };
        let shown = match std::str::from_utf8(&input.bytes) {
            Ok(text) => text.to_string(),
            Err(_) => format!("{} bytes", input.bytes.len()),
        };
        format!("{name}: {which} fails: {message}\n\n{shown}\n\n{place}")
    }
}
