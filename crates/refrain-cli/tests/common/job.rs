//! The processes of a job, as a launcher starts them.

use std::io::Read;
use std::process::{Child, Command, Output, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::{Place, Said, said};

/// What a test waits for is there sooner or later.
pub const LONG: Duration = Duration::from_secs(120);

/// A `MASTER_PORT`: ranks meet at the one after it, which is free.
pub fn master_port() -> String {
    (refrain_test::free_port() - 1).to_string()
}

/// The processes of a job. Those that are still there at the end are killed.
pub struct Job(Vec<Option<Rank>>);

/// A process. Its output is read while it runs, so that it never waits for a reader.
struct Rank {
    child: Child,
    streams: [JoinHandle<Vec<u8>>; 2],
}

impl Rank {
    fn start(mut command: Command) -> Rank {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        fn read(mut stream: impl Read + Send + 'static) -> JoinHandle<Vec<u8>> {
            std::thread::spawn(move || {
                let mut bytes = Vec::new();
                stream.read_to_end(&mut bytes).unwrap();
                bytes
            })
        }
        let streams = [read(child.stdout.take().unwrap()), read(child.stderr.take().unwrap())];
        Rank { child, streams }
    }

    /// Kills it if it still runs; what it said.
    fn end(mut self) -> Said {
        let _ = self.child.kill();
        let status = self.child.wait().unwrap();
        let [stdout, stderr] = self.streams.map(|stream| stream.join().unwrap());
        said(Output { status, stdout, stderr })
    }
}

impl Job {
    /// A rank with each of these arguments, with the variables of torchrun.
    pub fn start(place: &Place, ranks: &[Vec<&str>]) -> Job {
        let port = master_port();
        let command = |(rank, arguments): (usize, &Vec<&str>)| {
            let mut command = place.command(arguments);
            command.env("RANK", rank.to_string()).env("LOCAL_RANK", rank.to_string());
            command.env("WORLD_SIZE", ranks.len().to_string()).env("MASTER_ADDR", "127.0.0.1");
            command.env("MASTER_PORT", &port).env("TORCHELASTIC_RUN_ID", "test");
            command
        };
        Job::of(ranks.iter().enumerate().map(command))
    }

    /// A rank of each of these commands.
    pub fn of(commands: impl IntoIterator<Item = Command>) -> Job {
        Job(commands.into_iter().map(|command| Some(Rank::start(command))).collect())
    }

    pub fn signal(&self, rank: usize, signal: &str) {
        let id = self.0[rank].as_ref().unwrap().child.id().to_string();
        assert!(Command::new("kill").args([signal, &id]).status().unwrap().success());
    }

    /// Waits until this is so.
    pub fn wait_for(&self, is_so: impl Fn() -> bool) {
        let begun = Instant::now();
        while !is_so() {
            assert!(begun.elapsed() < LONG, "it never comes");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Waits until all have ended; what each said.
    #[track_caller]
    pub fn end(mut self) -> Vec<Said> {
        let begun = Instant::now();
        let running = |rank: &mut Option<Rank>| rank.as_mut().unwrap().child.try_wait().unwrap().is_none();
        while self.0.iter_mut().any(running) && begun.elapsed() < LONG {
            std::thread::sleep(Duration::from_millis(5));
        }
        let stuck = self.0.iter_mut().position(running);
        let all: Vec<Said> = self.0.iter_mut().map(|rank| rank.take().unwrap().end()).collect();
        if let Some(rank) = stuck {
            let all: Vec<_> = all.iter().map(|Said { status, out, err }| (status, out, err)).collect();
            panic!("rank {rank} does not end; what all said (status, output, errors): {all:?}");
        }
        all
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        for rank in self.0.iter_mut().flatten() {
            let _ = rank.child.kill();
            let _ = rank.child.wait();
        }
    }
}

pub fn both(arguments: Vec<&str>) -> [Vec<&str>; 2] {
    [arguments.clone(), arguments]
}
