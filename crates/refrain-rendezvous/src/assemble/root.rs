//! Rank 0 waits until all ranks are there, compares what they bring, and tells each the same.

use std::io;
use std::net::{TcpListener, TcpStream, ToSocketAddrs, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::door::{Door, Entrance};
use super::file::Note;
use super::message::{self, Answer, Join, Verdict};
use super::{TALK, Waiting};
use crate::address::{Address, is_loopback_name, is_private};
use crate::error::{Error, ErrorKind, Result};
use crate::rendezvous::{Fact, Rendezvous};
use crate::token::{Conversation, Label, TOKEN_VARIABLE, random};
use crate::wire::{Timed, close, is_open};

/// How many lines a message has about ranks that differ.
const LINES: usize = 16;

/// How many ranks that the world does not have are kept waiting for the verdict.
const MISFITS: usize = 1024;

/// A rank that is there and waits.
pub struct JoinedRank {
    pub stream: TcpStream,
    pub talk: Conversation,
    pub host: String,
    pub facts: Vec<Fact>,
}

/// Whether somebody who comes now can be taken in.
pub enum Stage {
    Assembling,
    /// The ranks are together; the function says whether a rank is still with them.
    Together(Arc<dyn Fn(usize) -> bool + Send + Sync>),
    Over,
}

/// Who is there.
pub struct Assembly {
    pub stage: Stage,
    /// By rank; that of rank 0 stays empty.
    joined: Vec<Option<JoinedRank>>,
    /// Ranks that this world does not have, who are told so with the others.
    misfits: Vec<(usize, JoinedRank)>,
    /// When it became clear that the ranks can't begin, and why, unless they differ.
    doomed: Option<(Instant, Option<Error>)>,
}

impl Assembly {
    pub fn new(size: usize) -> Self {
        Self {
            stage: Stage::Assembling,
            joined: (0..size).map(|_| None).collect(),
            misfits: Vec::new(),
            doomed: None,
        }
    }

    /// Why a rank that has said who it is can't be taken in, if it can't.
    pub fn refusal(&mut self, rendezvous: &Rendezvous, join: &Join) -> Option<Answer> {
        let Join { rank, host, .. } = join;
        let twice = |first: &str| {
            let message = format!(
                "rank {rank} came twice, from {first} and from {host}: start every rank once, give every process a rank of its \
                 own, and give each job an address of its own (--rendezvous)"
            );
            Error::new(ErrorKind::Twice, message)
        };
        match &self.stage {
            Stage::Assembling => {}
            Stage::Together(is_alive) if is_alive(*rank) => {
                return Some(Answer::Refused(twice("a process that takes part already")));
            }
            Stage::Together(_) | Stage::Over => {
                return Some(Answer::Later {
                    why: "rank 0 there is ending an attempt that failed".to_owned(),
                });
            }
        }
        let first = match self.joined.get(*rank) {
            _ if *rank == 0 => Some(rendezvous.host.clone()),
            Some(Some(peer)) if is_open(&peer.stream) => Some(peer.host.clone()),
            Some(_) => None,
            None if differences(&rendezvous.facts, &join.facts).is_empty()
                || self.misfits.len() >= MISFITS =>
            {
                let message = format!("rank {rank} does not exist in a world of {}", self.joined.len());
                return Some(Answer::Refused(Error::new(ErrorKind::World, message)));
            }
            None => None,
        };
        first.map(|first| {
            let error = twice(&first);
            self.doomed.get_or_insert((Instant::now(), None)).1.get_or_insert(error.clone());
            Answer::Refused(error)
        })
    }

    /// Takes a rank in.
    pub fn add(&mut self, rendezvous: &Rendezvous, rank: usize, peer: JoinedRank) {
        if !differences(&rendezvous.facts, &peer.facts).is_empty() {
            self.doomed.get_or_insert((Instant::now(), None));
        }
        match self.joined.get_mut(rank) {
            Some(place) => *place = Some(peer),
            None => self.misfits.push((rank, peer)),
        }
    }

    fn missing(&self) -> Vec<usize> {
        (1..self.joined.len()).filter(|&rank| self.joined[rank].is_none()).collect()
    }

    fn present(&self) -> impl Iterator<Item = (usize, &JoinedRank)> {
        let numbered =
            self.joined.iter().enumerate().filter_map(|(rank, peer)| peer.as_ref().map(|s| (rank, s)));
        numbered.chain(self.misfits.iter().map(|(rank, peer)| (*rank, peer)))
    }

    /// Forgets who has gone. If nobody is left who differs, the others can still begin.
    fn forget_closed(&mut self, rendezvous: &Rendezvous) {
        for peer in &mut self.joined {
            *peer = peer.take().filter(|peer| is_open(&peer.stream));
        }
        self.misfits.retain(|(_, peer)| is_open(&peer.stream));
        if matches!(self.doomed, Some((_, None))) && self.report(rendezvous).is_empty() {
            self.doomed = None;
        }
    }

    /// What the ranks that are there differ in, for a message; empty if nothing.
    fn report(&self, rendezvous: &Rendezvous) -> String {
        let mut lines = Vec::new();
        for (rank, peer) in self.present() {
            for (name, theirs, ours) in differences(&rendezvous.facts, &peer.facts) {
                lines.push(format!(
                    "\n  rank {rank} on {}: {name} is {theirs}, but {ours} on rank 0 on {}",
                    peer.host, rendezvous.host
                ));
            }
        }
        let more = lines.len().saturating_sub(LINES);
        lines.truncate(LINES);
        lines.concat() + &if more > 0 { format!("\n  and {more} more") } else { String::new() }
    }
}

/// What differs between rank 0 and another: the name, and the values there and here.
fn differences<'a>(ours: &'a [Fact], theirs: &'a [Fact]) -> Vec<(&'a str, &'a str, &'a str)> {
    let value = |facts: &'a [Fact], name: &str| {
        facts.iter().find(|f| f.name == name).map_or("not given", |f| f.value.as_str())
    };
    let names = ours.iter().chain(theirs.iter().filter(|t| ours.iter().all(|o| o.name != t.name)));
    names
        .map(|f| (f.name.as_str(), value(theirs, &f.name), value(ours, &f.name)))
        .filter(|(_, theirs, ours)| theirs != ours)
        .collect()
}

/// Listens, waits for all ranks, and tells them the verdict.
pub fn assemble(
    rendezvous: &Rendezvous,
    address: &Address,
    deadline: Instant,
) -> Result<(Door, Vec<JoinedRank>)> {
    let session = random()?;
    let (listener, note) = match address {
        Address::Tcp { host, port } => {
            demand_token_on_public(rendezvous, host)?;
            (listen(host, *port, address)?, None)
        }
        Address::File(path) => {
            let listener = listen("", 0, address)?;
            let port = listener.local_addr().map_err(|e| refused(address, &e))?.port();
            let mut hosts = vec![rendezvous.host.clone()];
            hosts.extend(outward());
            for host in &hosts[1..] {
                demand_token_on_public(rendezvous, host)?;
            }
            hosts.push("127.0.0.1".to_owned());
            (listener, Some(Note::publish(path, rendezvous, session, &hosts, port)?))
        }
    };
    let door = Door::open(rendezvous, listener, session, deadline)?;
    let (verdict, joined) = gather(&door.entrance);
    drop(note);
    match verdict {
        Ok(_) => Ok((door, joined)),
        Err(error) => Err(error),
    }
}

/// Waits for all ranks, and tells each the verdict.
fn gather(entrance: &Entrance) -> (Verdict, Vec<JoinedRank>) {
    let rendezvous = &entrance.rendezvous;
    // Ranks that come a little later hear the verdict, too, if it is that nothing is started.
    let linger = (rendezvous.assemble / 4).min(2 * TALK);
    let mut waiting = Waiting::new();
    let mut assembly = entrance.assembly();
    let verdict = loop {
        assembly.forget_closed(rendezvous);
        let missing = assembly.missing();
        let doomed = assembly.doomed.as_ref().is_some_and(|(since, _)| since.elapsed() >= linger);
        let late = Instant::now() >= entrance.deadline;
        if missing.is_empty() || doomed || late {
            break verdict(&assembly, rendezvous, &missing, &entrance.turned_away());
        }
        waiting.say(rendezvous, || format!("rank 0 on {} waits for {}", rendezvous.host, ranks(&missing)));
        let wait = entrance.changed.wait_timeout(assembly, Duration::from_millis(100));
        assembly = wait.unwrap_or_else(std::sync::PoisonError::into_inner).0;
    };
    let body = message::encode_verdict(&verdict);
    for (_, peer) in assembly.present() {
        let mut timed = Timed { stream: &peer.stream, deadline: Instant::now() + TALK };
        // A rank that has gone meanwhile is noticed by the group.
        let _ = message::send(&mut timed, &peer.talk, rendezvous.token.as_ref(), Label::Verdict, &body);
        if verdict.is_err() {
            close(&peer.stream);
        }
    }
    assembly.stage = Stage::Over;
    let joined = assembly.joined.iter_mut().filter_map(Option::take).collect();
    (verdict, joined)
}

fn verdict(assembly: &Assembly, rendezvous: &Rendezvous, missing: &[usize], turned_away: &str) -> Verdict {
    if let Some((_, Some(error))) = &assembly.doomed {
        return Err(error.clone());
    }
    let report = assembly.report(rendezvous);
    if !report.is_empty() {
        let message = format!(
            "ranks differ in what must be the same on all, so nothing was started:{report}\n  \
             give every rank the same program, options and data"
        );
        return Err(Error::new(ErrorKind::Differs, message));
    }
    if !missing.is_empty() {
        let size = rendezvous.world.size;
        let message = format!(
            "{} of {size} did not come within {:?}: look at what they print where they run, and check that every rank has the \
             address of rank 0 on {} and the world size {size}{turned_away}",
            ranks(missing),
            rendezvous.assemble,
            rendezvous.host
        );
        return Err(Error::new(ErrorKind::Missing, message));
    }
    let hosts =
        assembly.joined.iter().map(|peer| peer.as_ref().map_or(rendezvous.host.clone(), |s| s.host.clone()));
    Ok((hosts.collect(), rendezvous.payload.clone()))
}

/// "rank 3" or "ranks 1, 2, 7".
fn ranks(list: &[usize]) -> String {
    let shown: Vec<_> = list.iter().take(LINES).map(usize::to_string).collect();
    let more = if list.len() > LINES { format!(" and {} more", list.len() - LINES) } else { String::new() };
    format!("rank{} {}{more}", if list.len() == 1 { "" } else { "s" }, shown.join(", "))
}

/// A port on all addresses of this host; only on the loopback interface if the address names that.
fn listen(host: &str, port: u16, address: &Address) -> Result<TcpListener> {
    let listener = match is_loopback_name(host) {
        true => TcpListener::bind((host, port)),
        // On most systems the first takes IPv4 connections, too.
        false => TcpListener::bind(("::", port)).or_else(|error| match error.kind() {
            io::ErrorKind::AddrInUse | io::ErrorKind::PermissionDenied => Err(error),
            _ => TcpListener::bind(("0.0.0.0", port)),
        }),
    };
    listener.map_err(|error| refused(address, &error))
}

fn refused(address: &Address, error: &io::Error) -> Error {
    let fix = match error.kind() {
        io::ErrorKind::AddrInUse => {
            "the port is taken by another job or program: end it, or give all ranks another port (--rendezvous \
             tcp://HOST:PORT; without it, ranks meet at the port after MASTER_PORT)"
        }
        io::ErrorKind::PermissionDenied => "choose a port above 1023 (--rendezvous tcp://HOST:PORT)",
        _ => "give all ranks an address of the host of rank 0 (--rendezvous tcp://HOST:PORT)",
    };
    Error::new(ErrorKind::Listen, format!("rank 0 can't listen at {address} ({error}): {fix}"))
}

/// The address by which this host reaches others, if there is one. Nothing is sent.
fn outward() -> Option<String> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect("10.255.255.255:9").ok()?;
    let ip = socket.local_addr().ok()?.ip();
    (!ip.is_unspecified() && !ip.is_loopback()).then(|| ip.to_string())
}

/// A job that can be reached from anywhere needs a secret.
fn demand_token_on_public(rendezvous: &Rendezvous, host: &str) -> Result<()> {
    if rendezvous.token.is_some() || rendezvous.public {
        return Ok(());
    }
    // A name that can't be resolved here yet is not known to be public; each connection is looked at as well.
    let public = (host, 0).to_socket_addrs().ok().and_then(|mut found| found.find(|a| !is_private(a.ip())));
    match public {
        None => Ok(()),
        Some(address) => Err(no_token(host, &address.ip().to_string())),
    }
}

/// The error for a public address without a secret.
pub fn no_token(host: &str, ip: &str) -> Error {
    let message = format!(
        "{host} ({ip}) is a public address, and a job that meets there needs a secret: give every rank the same \
         {TOKEN_VARIABLE} (`openssl rand -hex 32`), or meet on a private network, or waive the secret \
         (--rendezvous-without-token)"
    );
    Error::new(ErrorKind::Token, message)
}
