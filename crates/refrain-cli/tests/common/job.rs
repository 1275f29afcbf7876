//! The processes of a job, as a launcher starts them.

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::{Place, Said, said};

/// What a test waits for is there sooner or later.
pub const LONG: Duration = Duration::from_secs(120);

/// A port that is free, like the one after it.
fn free_port() -> u16 {
    loop {
        let first = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = first.local_addr().unwrap().port();
        if port < u16::MAX && TcpListener::bind(("127.0.0.1", port + 1)).is_ok() {
            return port;
        }
    }
}

/// The processes of a job. Those that are still there at the end are killed.
pub struct Job(pub Vec<Option<Child>>);

impl Job {
    /// A rank with each of these arguments, with the variables of torchrun.
    pub fn start(place: &Place, ranks: &[Vec<&str>]) -> Job {
        let port = free_port().to_string();
        let start = |(rank, arguments): (usize, &Vec<&str>)| {
            let mut command = place.command(arguments);
            command.env("RANK", rank.to_string()).env("LOCAL_RANK", rank.to_string());
            command.env("WORLD_SIZE", ranks.len().to_string()).env("MASTER_ADDR", "127.0.0.1");
            command.env("MASTER_PORT", &port).env("TORCHELASTIC_RUN_ID", "test");
            Some(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
        };
        Job(ranks.iter().enumerate().map(start).collect())
    }

    pub fn signal(&self, rank: usize, signal: &str) {
        let id = self.0[rank].as_ref().unwrap().id().to_string();
        assert!(Command::new("kill").args([signal, &id]).status().unwrap().success());
    }

    /// Waits until all have ended; what each said.
    pub fn end(mut self) -> Vec<Said> {
        let begun = Instant::now();
        let all = self.0.iter_mut().map(|child| {
            let running = child.as_mut().unwrap();
            while running.try_wait().unwrap().is_none() {
                assert!(begun.elapsed() < LONG, "a rank does not end");
                std::thread::sleep(Duration::from_millis(5));
            }
            said(child.take().unwrap().wait_with_output().unwrap())
        });
        all.collect()
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        for child in self.0.iter_mut().flatten() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

pub fn both(arguments: Vec<&str>) -> [Vec<&str>; 2] {
    [arguments.clone(), arguments]
}
