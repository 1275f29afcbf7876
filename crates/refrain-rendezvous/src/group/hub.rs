//! What rank 0 knows of all ranks: it completes exchanges, watches over the ranks, and agrees on the step to stop at. It
//! treats itself as any other rank. It has no clock and no sockets of its own.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::frame::{Down, Failure, Progress, Up};
use super::link::{Heard, Outbox};

/// How many earlier exchanges of a rank a story tells.
const RECENT: usize = 3;

/// When a rank counts as failed.
#[derive(Clone, Copy)]
pub struct Limits {
    /// Nothing was heard of it.
    pub silence: Duration,
    /// It did not move while others waited for it.
    pub stall: Duration,
}

struct Peer {
    host: String,
    out: Outbox,
    heard: Heard,
    progress: Progress,
    /// Since when others have waited for it while it did not move.
    behind: Option<Instant>,
    /// It said goodbye, or its connection ended after a failure.
    left: bool,
    recent: VecDeque<String>,
    promise: Option<u64>,
    /// It has learned of the failure.
    learned: bool,
}

/// Whether the ranks stop.
enum Stop {
    Running,
    /// Every rank is asked which step it has not begun.
    Asked,
    Agreed,
}

pub struct Hub {
    limits: Limits,
    peers: Vec<Peer>,
    /// How many exchanges are complete, and what has come for the next.
    rounds: u64,
    round: Vec<Option<(String, Vec<u8>)>>,
    stop: Stop,
    failure: Option<Failure>,
    broken: bool,
    ticked: Instant,
}

impl Hub {
    pub fn new(ranks: Vec<(String, Outbox, Heard)>, limits: Limits, now: Instant) -> Self {
        let peers: Vec<_> = ranks
            .into_iter()
            .map(|(host, out, heard)| Peer {
                host,
                out,
                heard,
                progress: Progress::default(),
                behind: None,
                left: false,
                recent: VecDeque::new(),
                promise: None,
                learned: false,
            })
            .collect();
        let round = peers.iter().map(|_| None).collect();
        Self {
            limits,
            peers,
            rounds: 0,
            round,
            stop: Stop::Running,
            failure: None,
            broken: false,
            ticked: now,
        }
    }

    /// Whether a rank takes part: nothing has failed, and it has not left.
    pub fn takes_part(&self, rank: usize) -> bool {
        self.failure.is_none() && self.peers.get(rank).is_some_and(|peer| !peer.left)
    }

    /// Whether all ranks but 0 have left, and whether one has failed.
    pub fn is_over(&self) -> (bool, bool) {
        (self.peers[1..].iter().all(|peer| peer.left), self.failure.is_some())
    }

    /// Whether all ranks have learned of the failure, except the one that failed, which may not be able to.
    pub fn all_have_learned(&self) -> bool {
        let failed = self.failure.as_ref().map(|failure| failure.rank);
        self.peers.iter().enumerate().skip(1).all(|(r, peer)| peer.learned || peer.left || Some(r) == failed)
    }

    pub fn outboxes(&self) -> impl Iterator<Item = &Outbox> {
        self.peers.iter().map(|peer| &peer.out)
    }

    pub fn broadcast(&self, down: Down) {
        let frame = Arc::new(down.encode());
        self.peers.iter().for_each(|peer| peer.out.send(frame.clone()));
    }

    /// A frame has come from a rank.
    pub fn receive(&mut self, rank: usize, up: Up) {
        if self.peers[rank].left {
            return;
        }
        match up {
            Up::Beat(progress) => {
                let peer = &mut self.peers[rank];
                if peer.progress != progress {
                    peer.progress = progress;
                    peer.behind = None;
                }
            }
            Up::Exchange { number, what, bytes } => self.exchange(rank, number, what, bytes),
            Up::Stop => {
                if matches!(self.stop, Stop::Running) {
                    self.stop = Stop::Asked;
                    self.broadcast(Down::Query);
                }
            }
            Up::Promise(step) => {
                self.peers[rank].promise = Some(step);
                self.agree_on_stop();
            }
            Up::Learned => self.peers[rank].learned = true,
            Up::Abandon(why) => self.fail(rank, format!("it gave up: {why}")),
            Up::Goodbye => {
                self.peers[rank].left = true;
                self.agree_on_stop();
                self.check_round();
            }
        }
    }

    /// The connection of a rank has ended.
    pub fn closed(&mut self, rank: usize) {
        if !self.peers[rank].left {
            self.fail(
                rank,
                "its process ended without a goodbye: it was killed, it crashed, or its host went down"
                    .to_owned(),
            );
            self.peers[rank].left = true;
        }
    }

    /// A rank sent what is not of the protocol.
    pub fn malformed(&mut self, rank: usize) {
        self.fail(rank, "it sent a malformed message".to_owned());
    }

    fn fail(&mut self, rank: usize, what: String) {
        if self.failure.is_none() {
            let Peer { host, progress, .. } = &self.peers[rank];
            let failure = Failure { rank, host: host.clone(), step: progress.step, what };
            self.broadcast(Down::Failure(failure.clone()));
            self.failure = Some(failure);
        }
    }

    fn exchange(&mut self, rank: usize, number: u64, what: String, bytes: Vec<u8>) {
        if self.failure.is_some() || self.broken {
            return; // all ranks know
        }
        if number != self.rounds || self.round[rank].is_some() {
            return self.malformed(rank);
        }
        let recent = &mut self.peers[rank].recent;
        recent.push_back(what.clone());
        if recent.len() > RECENT + 1 {
            recent.pop_front();
        }
        self.peers[rank].behind = None;
        let other = self.round.iter().position(|part| part.as_ref().is_some_and(|(other, _)| *other != what));
        self.round[rank] = Some((what, bytes));
        match other {
            Some(other) => self.break_up(format!("{}, but {}", self.story(rank), self.story(other))),
            None => self.check_round(),
        }
    }

    /// Completes the exchange if all parts are there. If somebody has left, they never will be.
    fn check_round(&mut self) {
        let Some(waiting) = self.round.iter().position(Option::is_some) else { return };
        if self.broken {
            return;
        }
        if self.round.iter().all(Option::is_some) {
            let parts =
                self.round.iter_mut().filter_map(|part| part.take().map(|(_, bytes)| bytes)).collect();
            self.broadcast(Down::Parts { number: self.rounds, parts });
            self.rounds += 1;
        } else if let Some(left) =
            (0..self.peers.len()).find(|&r| self.peers[r].left && self.round[r].is_none())
        {
            let host = &self.peers[left].host;
            self.break_up(format!("{}, but rank {left} on {host} has finished", self.story(waiting)));
        }
    }

    fn break_up(&mut self, stories: String) {
        self.broken = true;
        self.round.iter_mut().for_each(|part| *part = None);
        let rule = "every rank must make the same exchanges in the same order";
        self.broadcast(Down::Broken(format!("{stories}: {rule}")));
    }

    /// What a rank does in the exchange that is open.
    fn story(&self, rank: usize) -> String {
        let Peer { host, recent, .. } = &self.peers[rank];
        let mut calls = recent.iter().rev().map(|what| format!("{what:?}"));
        let call = calls.next().unwrap_or_default();
        let before: Vec<_> = calls.rev().collect();
        let before =
            if before.is_empty() { String::new() } else { format!(" (after {})", before.join(", ")) };
        format!("rank {rank} on {host} makes exchange {} as {call}{before}", self.rounds)
    }

    /// No rank begins the first step that none has begun.
    fn agree_on_stop(&mut self) {
        if !matches!(self.stop, Stop::Asked) {
            return;
        }
        let promises: Option<Vec<_>> =
            self.peers.iter().filter(|peer| !peer.left).map(|peer| peer.promise).collect();
        if let Some(step) = promises.and_then(|p| p.into_iter().max()) {
            self.stop = Stop::Agreed;
            self.broadcast(Down::StopAt(step));
        }
    }

    /// Looks for ranks that are silent, or do not move while others wait for them.
    pub fn tick(&mut self, now: Instant) {
        // If this process was stopped for a while, it was deaf; that says nothing about the others.
        let deaf = now.saturating_duration_since(self.ticked) > self.limits.silence / 2;
        self.ticked = now;
        if deaf {
            for peer in &mut self.peers {
                peer.heard.at(now);
                peer.behind = None;
            }
        }
        if self.failure.is_some() {
            return;
        }
        let silent = (1..self.peers.len()).find(|&rank| {
            let peer = &self.peers[rank];
            !peer.left && peer.heard.silence(now) > self.limits.silence
        });
        if let Some(rank) = silent {
            let what = format!(
                "nothing was heard of it for {:?}: its process is stopped, or its host can't be reached",
                self.limits.silence
            );
            return self.fail(rank, what);
        }
        self.find_stalled(now);
    }

    fn find_stalled(&mut self, now: Instant) {
        let present = |peer: &&Peer| !peer.left;
        let lead = self.peers.iter().filter(present).map(|peer| peer.progress.collective).max().unwrap_or(0);
        let open = self.round.iter().any(Option::is_some);
        for (peer, part) in self.peers.iter_mut().zip(&self.round) {
            let awaited = peer.progress.collective < lead || (open && part.is_none());
            match !peer.left && awaited && peer.progress.phase.must_move() {
                true => _ = peer.behind.get_or_insert(now),
                false => peer.behind = None,
            }
        }
        // A large exchange on a slow network is progress.
        let since = |peer: &Peer| peer.behind.map(|behind| behind.max(peer.heard.exchanged()));
        let stalled =
            |peer: &Peer| since(peer).is_some_and(|s| now.saturating_duration_since(s) > self.limits.stall);
        // Others may wait for this one, and be waited for in turn: the one that has done least holds them up.
        let slowest = (0..self.peers.len()).filter(|&r| stalled(&self.peers[r]));
        if let Some(rank) = slowest.min_by_key(|&r| (self.peers[r].progress.collective, r)) {
            let what = self.describe_stall(rank, lead);
            self.fail(rank, what);
        }
    }

    fn describe_stall(&self, rank: usize, lead: u64) -> String {
        let Progress { collective, phase, .. } = self.peers[rank].progress;
        let mut what = format!(
            "it lives but has not moved for {:?}: it is at collective {collective}, phase {phase}",
            self.limits.stall
        );
        if let Some((name, _)) = &self.round[rank] {
            what += &format!(", and waits in exchange {} ({name:?})", self.rounds);
        }
        let ahead =
            self.peers.iter().position(|p| !p.left && p.progress.collective == lead && collective < lead);
        if let Some(ahead) = ahead {
            what += &format!(", while rank {ahead} on {} waits in collective {lead}", self.peers[ahead].host);
        }
        let waiting =
            self.round.iter().enumerate().find_map(|(r, part)| part.as_ref().map(|(name, _)| (r, name)));
        if let Some((waiting, name)) = waiting.filter(|(r, _)| *r != rank) {
            let host = &self.peers[waiting].host;
            what += &format!(", while rank {waiting} on {host} waits in exchange {} ({name:?})", self.rounds);
        }
        what
    }
}
