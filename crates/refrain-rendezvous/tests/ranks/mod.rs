//! Ranks that are real processes: this test program, started again with an errand.

// A dependency on refrain-test would be one on the engine.
#[path = "../../../refrain-test/src/ports.rs"]
mod ports;

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

pub use ports::free_port;
use refrain_rendezvous::{Group, Phase, RANK_FAILED, Rendezvous, Token, World, WorldOptions};

/// The errand of a process that is a rank, instead of a test.
const ERRAND: &str = "REFRAIN_TEST_ERRAND";

/// A test that waits longer than this hangs.
const HANGS: Duration = Duration::from_secs(30);

/// A process that is a rank. It is killed when this is dropped.
pub struct Rank {
    child: Child,
    lines: Receiver<String>,
    pub seen: Vec<String>,
}

/// Variables in the environment of a rank.
pub struct Setting {
    pub variables: Vec<(String, String)>,
}

impl Setting {
    pub fn new(rank: usize, size: usize, meeting: &str) -> Self {
        let setting = Self { variables: Vec::new() };
        setting
            .with("RANK", rank)
            .with("LOCAL_RANK", rank)
            .with("WORLD_SIZE", size)
            .with("TEST_MEETING", meeting)
            .with("TEST_HOST", format!("host{rank}"))
    }

    pub fn with(mut self, name: &str, value: impl ToString) -> Self {
        self.variables.retain(|(n, _)| n != name);
        self.variables.push((name.to_owned(), value.to_string()));
        self
    }

    /// Starts the rank: what it does is in `errand`, a list of words.
    pub fn start(&self, errand: &str) -> Rank {
        let mut command = Command::new(std::env::current_exe().unwrap());
        for (name, _) in std::env::vars_os() {
            // Not what a launcher of the tests may have set.
            let name = name.to_string_lossy().into_owned();
            if ["SLURM_", "OMPI_", "PMI", "TORCHELASTIC_", "REFRAIN_RENDEZVOUS", "MASTER_"]
                .iter()
                .any(|p| name.starts_with(p))
            {
                command.env_remove(name);
            }
        }
        command.args(["--exact", "this_process_may_be_a_rank", "--nocapture", "--test-threads", "1"]);
        command.env(ERRAND, errand).envs(self.variables.iter().map(|(n, v)| (n, v)));
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let (sender, lines) = channel();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        std::thread::spawn(move || {
            stderr.lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        Rank { child, lines, seen: Vec::new() }
    }
}

impl Rank {
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits until the rank says a line that contains this.
    pub fn says(&mut self, what: &str) -> String {
        let until = Instant::now() + HANGS;
        loop {
            match self.lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(line) => {
                    self.seen.push(line.clone());
                    if line.contains(what) {
                        return line;
                    }
                }
                Err(e) => panic!("it did not say {what:?} ({e}); it said {:#?}", self.seen),
            }
        }
    }

    /// Waits for the end: the status, and all that it said.
    pub fn ends(&mut self) -> (Option<i32>, String) {
        let until = Instant::now() + HANGS;
        while let Ok(line) = self.lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
            self.seen.push(line);
        }
        assert!(Instant::now() < until, "it does not end; it said {:#?}", self.seen);
        (self.child.wait().unwrap().code(), self.seen.join("\n"))
    }

    /// Sends a signal by its name.
    pub fn signal(&self, name: &str) {
        let status =
            Command::new("kill").args([&format!("-{name}"), &self.id().to_string()]).status().unwrap();
        assert!(status.success());
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Ranks of one world, each with the errand of its number.
pub fn start(meeting: &str, errands: &[&str], adjust: impl Fn(usize, Setting) -> Setting) -> Vec<Rank> {
    let one = |(rank, errand): (usize, &&str)| {
        adjust(rank, Setting::new(rank, errands.len(), meeting)).start(errand)
    };
    errands.iter().enumerate().map(one).collect()
}

/// What the process does if it is a rank.
pub fn run_errand() {
    let Ok(errand) = std::env::var(ERRAND) else { return };
    match rank(&errand) {
        Ok(()) => std::process::exit(0),
        Err(message) => {
            eprintln!("error: {}", message.replace('\n', " | "));
            std::process::exit(1);
        }
    }
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

fn millis(name: &str, default: u64) -> Duration {
    Duration::from_millis(variable(name).map_or(default, |text| text.parse().unwrap()))
}

fn rank(errand: &str) -> Result<(), String> {
    let options = WorldOptions {
        rendezvous: variable("TEST_MEETING")
            .map(|text| text.parse())
            .transpose()
            .map_err(|e| format!("{e}"))?,
        ..WorldOptions::default()
    };
    let world = World::from_environment(&options).map_err(|e| e.to_string())?;
    let group = Rendezvous::new(world.clone())
        .host(&variable("TEST_HOST").unwrap())
        .token(Token::from_environment().map_err(|e| e.to_string())?)
        .allow_public_without_token(variable("TEST_PUBLIC").is_some())
        .must_agree("version", &variable("TEST_VERSION").unwrap_or_else(|| "1".to_owned()))
        .must_agree("configuration", &variable("TEST_CONFIGURATION").unwrap_or_else(|| "abc".to_owned()))
        .must_agree("data", "d1")
        .payload(vec![world.rank as u8; 128])
        .assemble_within(millis("TEST_ASSEMBLE", 20_000))
        .notice_failures_within(millis("TEST_WITHIN", 1000))
        .join()
        .map_err(|e| format!("{:?}: {e}", e.kind()))?;
    let quiet = errand.starts_with("quiet");
    group.on_failure(move |failure| {
        eprintln!("failure: {failure}");
        if !quiet {
            std::process::exit(RANK_FAILED.into());
        }
    });
    eprintln!(
        "together: {} of {} on {:?}, payload {:?}",
        group.rank(),
        group.size(),
        group.hosts(),
        &group.payload()[..2]
    );
    let done = errand.split(';').try_for_each(|word| act(&group, word.trim()));
    if done.is_err() && group.failure().is_some() && !quiet {
        std::thread::sleep(Duration::from_secs(5)); // the function above ends the process
    }
    done
}

/// One word of an errand.
fn act(group: &Group, word: &str) -> Result<(), String> {
    let (verb, rest) = word.split_once(' ').unwrap_or((word, ""));
    let number = || rest.parse::<u64>().map_err(|_| format!("{word:?} has no number"));
    match verb {
        "" | "quiet" => {}
        "exchange" => {
            let parts = group.exchange(rest, format!("{rest} of {}", group.rank()).as_bytes())?;
            let parts: Vec<_> = parts.iter().map(|p| String::from_utf8_lossy(p)).collect();
            eprintln!("exchange: {parts:?}");
        }
        "large" => {
            let parts = group.exchange("large", &vec![group.rank() as u8; number()? as usize])?;
            let sums: Vec<_> = parts.iter().map(|p| (p.len(), p.iter().all(|b| *b == p[0]), p[0])).collect();
            eprintln!("large: {sums:?}");
        }
        // Steps with a collective each, as fast as they go, until somebody asks to stop.
        "train" => {
            group.set_phase(Phase::Training);
            let (until, mut step) = (number()?, 0);
            while step < until && group.begin_step(step).map_err(|e| e.to_string())? {
                group.set_collective(step + 1);
                if step == 3 {
                    eprintln!("training");
                }
                // Ranks are not equally fast.
                std::thread::sleep(Duration::from_micros(200 + 300 * group.rank() as u64));
                step += 1;
            }
            eprintln!("stopped at {step}, agreed {:?}", group.stop_at());
        }
        "collective" => group.set_collective(number()?),
        "step" => eprintln!("begin: {:?}", group.begin_step(number()?)),
        "phase" => group.set_phase(if rest == "validation" { Phase::Validation } else { Phase::Training }),
        "stop" => group.request_stop(),
        "say" => eprintln!("{rest}"),
        "sleep" => std::thread::sleep(Duration::from_millis(number()?)),
        "abandon" => group.abandon(rest),
        "leave" => group.leave().map_err(|e| e.to_string())?,
        "panic" => panic!("as asked"),
        "exit" => std::process::exit(3),
        _ => return Err(format!("{word:?} is no errand")),
    }
    Ok(())
}
