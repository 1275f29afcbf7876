//! The file in which rank 0 writes down where it listens.

use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use super::dial::{Setback, TakenIn, dial, session_at};
use super::name_of;
use crate::error::{Error, ErrorKind, Result};
use crate::rendezvous::Rendezvous;

/// The first line of the file.
const TITLE: &str = "refrain rendezvous 1";

/// The most bytes of the file that are read.
const LIMIT: u64 = 16 << 10;

/// The file of rank 0; it is removed when this is dropped.
pub struct Note {
    path: PathBuf,
    text: String,
}

impl Note {
    /// Writes where rank 0 listens. The file appears with all its content or not at all.
    pub fn publish(
        path: &Path,
        rendezvous: &Rendezvous,
        session: [u8; 16],
        hosts: &[String],
        port: u16,
    ) -> Result<Self> {
        let world = &rendezvous.world;
        if let Ok(found) = Found::read(path, rendezvous) {
            // A rank 0 that died left its file; one that lives must not lose it.
            if found.hosts.iter().any(|host| session_at(host, found.port) == Some(found.session)) {
                let message = format!(
                    "rank 0 of {} is there already, on {}, as {} says: start every rank once, or give each job a file of its own",
                    name_of(&world.job, world.attempt),
                    found.hosts[0],
                    path.display()
                );
                return Err(Error::new(ErrorKind::Twice, message));
            }
        }
        let mut text =
            format!("{TITLE}\njob {}\nattempt {}\nsession {}\n", world.job, world.attempt, hex(&session));
        text += &format!("port {port}\n");
        for host in hosts {
            text += &format!("host {host}\n");
        }
        let failed = |error: io::Error| {
            let message = format!(
                "rank 0 can't write the file of the rendezvous, {} ({error}): make its folder, on a disk that all hosts share, and \
                 let this user write there",
                path.display()
            );
            Error::new(ErrorKind::File, message)
        };
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let temporary = path.with_file_name(format!(".{name}.{}", hex(&session)));
        let written = fs::File::create_new(&temporary)
            .and_then(|mut file| file.write_all(text.as_bytes()).and_then(|()| file.sync_all()))
            .and_then(|()| fs::rename(&temporary, path));
        if let Err(error) = written {
            // It may not exist.
            let _ = fs::remove_file(&temporary);
            return Err(failed(error));
        }
        Ok(Self { path: path.to_owned(), text })
    }
}

impl Drop for Note {
    fn drop(&mut self) {
        // Another attempt may have written its own meanwhile.
        if fs::read_to_string(&self.path).is_ok_and(|text| text == self.text) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// What the file says.
pub struct Found {
    session: [u8; 16],
    hosts: Vec<String>,
    port: u16,
}

impl Found {
    /// Reads the file, if it is of this job and attempt; the error says why not.
    pub fn read(path: &Path, rendezvous: &Rendezvous) -> std::result::Result<Self, String> {
        let mut text = String::new();
        let opened = fs::File::open(path).and_then(|file| file.take(LIMIT).read_to_string(&mut text));
        opened.map_err(|error| format!("the file {} can't be read yet ({error})", path.display()))?;
        let mut lines = text.lines();
        let mut value = |name: &str| lines.next().and_then(|line| line.strip_prefix(name)).map(str::trim);
        let (title, job, attempt) = (value(TITLE), value("job"), value("attempt").map(str::parse));
        let (session, port) = (value("session").and_then(unhex), value("port").map(str::parse));
        let hosts: Vec<_> = lines.filter_map(|line| line.strip_prefix("host ")).map(str::to_owned).collect();
        let (Some(""), Some(job), Some(Ok(attempt)), Some(session), Some(Ok(port))) =
            (title, job, attempt, session, port)
        else {
            return Err(format!("{} is no file of a rendezvous", path.display()));
        };
        let world = &rendezvous.world;
        if (job, attempt) != (world.job.trim(), world.attempt) {
            let (theirs, ours) = (name_of(job, attempt), name_of(&world.job, world.attempt));
            return Err(format!("{} is of {theirs}, and this rank of {ours}", path.display()));
        }
        if hosts.is_empty() {
            return Err(format!("{} names no host", path.display()));
        }
        Ok(Self { session, hosts, port })
    }

    /// Tries the addresses of rank 0, those first that are likely to be right.
    pub fn dial(&self, rendezvous: &Rendezvous, deadline: Instant) -> std::result::Result<TakenIn, Setback> {
        let mut hosts: Vec<_> = self.hosts.iter().collect();
        if self.hosts[0] == rendezvous.host {
            hosts.rotate_right(1); // the loopback address, which rank 0 writes last
        }
        let mut setbacks = Vec::new();
        for host in hosts {
            match dial(rendezvous, host, self.port, Some(self.session), deadline) {
                Ok(taken_in) => return Ok(taken_in),
                Err(error @ Setback::Final(_)) => return Err(error),
                Err(Setback::Again(why)) => setbacks.push(why),
            }
        }
        Err(Setback::Again(setbacks.join("; ")))
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn unhex(text: &str) -> Option<[u8; 16]> {
    let byte = |i: usize| text.get(2 * i..2 * i + 2).and_then(|digits| u8::from_str_radix(digits, 16).ok());
    let mut bytes = [0; 16];
    for (i, b) in bytes.iter_mut().enumerate() {
        *b = byte(i)?;
    }
    (text.len() == 32).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::world::World;

    fn rendezvous(job: &str, attempt: u64) -> Rendezvous {
        Rendezvous::new(World { job: job.to_owned(), attempt, size: 2, ..World::one() })
    }

    #[test]
    fn a_file_is_found_by_its_own_job_and_attempt_only() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("meet");
        let mine = rendezvous("a", 1);
        let note =
            Note::publish(&path, &mine, [7; 16], &["h".to_owned(), "127.0.0.1".to_owned()], 1).unwrap();
        let found = Found::read(&path, &mine).unwrap();
        assert_eq!(
            (found.session, found.port, found.hosts),
            ([7; 16], 1, vec!["h".to_owned(), "127.0.0.1".to_owned()])
        );
        for (other, says) in
            [(rendezvous("a", 2), "attempt 1 of job a"), (rendezvous("", 1), "without a name")]
        {
            let why = Found::read(&path, &other).err().unwrap();
            assert!(why.contains(says), "{why}");
        }
        drop(note);
        assert!(Found::read(&path, &mine).is_err());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_later_attempt_keeps_its_file_when_the_earlier_one_ends() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("meet");
        let first = Note::publish(&path, &rendezvous("", 0), [1; 16], &["127.0.0.1".to_owned()], 1).unwrap();
        let second = rendezvous("", 1);
        let _second = Note::publish(&path, &second, [2; 16], &["127.0.0.1".to_owned()], 1).unwrap();
        drop(first);
        assert_eq!(Found::read(&path, &second).unwrap().session, [2; 16]);
    }

    #[test]
    fn what_is_no_file_of_a_rendezvous_is_said() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("meet");
        let good = format!("{TITLE}\njob \nattempt 0\nsession {}\nport 1\nhost a\n", hex(&[0; 16]));
        fs::write(&path, &good).unwrap();
        assert!(Found::read(&path, &rendezvous("", 0)).is_ok());
        for (from, to) in [
            (TITLE, "something"),
            ("attempt 0", "attempt x"),
            ("port 1", "port 70000"),
            ("host a\n", ""),
            ("session 00", "session 0g"),
        ] {
            fs::write(&path, good.replace(from, to)).unwrap();
            let why = Found::read(&path, &rendezvous("", 0)).err().unwrap();
            assert!(why.contains("no file of a rendezvous") || why.contains("names no host"), "{why}");
        }
        let missing = folder.path().join("no/such/folder");
        let error = Note::publish(&missing, &rendezvous("", 0), [0; 16], &[], 1).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::File);
        assert!(error.to_string().contains("make its folder"), "{error}");
    }
}
