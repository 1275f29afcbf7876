//! What every rank does, rank 0 too: it takes part in exchanges, tells how far it is, and learns of failures.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::frame::{Down, Failure, Frame, Phase, Progress, TEXT, Up, part_limit};
use super::hub::Hub;
use super::link::Outbox;
use super::locked;

type Callback = Box<dyn FnOnce(&Failure) + Send>;

/// The way to rank 0.
pub enum Uplink {
    /// There is no other rank.
    Alone,
    /// This is rank 0.
    Here(Arc<Mutex<Hub>>),
    There(Outbox),
}

pub struct Member {
    rank: usize,
    hosts: Vec<String>,
    uplink: Uplink,
    step: AtomicU64,
    collective: AtomicU64,
    /// How many bytes of exchanges have come.
    received: AtomicU64,
    phase: AtomicU8,
    /// The number of the next exchange; locked during one, so that threads take turns.
    exchanges: Mutex<u64>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    failure: Option<Failure>,
    callbacks: Vec<Callback>,
    broken: Option<String>,
    parts: Option<(u64, Vec<Vec<u8>>)>,
    /// The first step that has not begun.
    next: u64,
    /// Whether no further step begins until it is known where to stop.
    promised: bool,
    stop_at: Option<u64>,
    root: Progress,
    root_left: bool,
    left: bool,
}

impl Member {
    pub fn new(rank: usize, hosts: Vec<String>, uplink: Uplink) -> Self {
        Self {
            rank,
            hosts,
            uplink,
            step: AtomicU64::new(0),
            collective: AtomicU64::new(0),
            received: AtomicU64::new(0),
            phase: AtomicU8::new(Phase::Starting as u8),
            exchanges: Mutex::new(0),
            state: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        locked(&self.state)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    pub fn hosts(&self) -> &[String] {
        &self.hosts
    }

    pub fn progress(&self) -> Progress {
        Progress {
            step: self.step.load(Ordering::Relaxed),
            collective: self.collective.load(Ordering::Relaxed),
            received: self.received.load(Ordering::Relaxed),
            phase: Phase::of_number(self.phase.load(Ordering::Relaxed)).unwrap_or_default(),
        }
    }

    pub fn set_collective(&self, number: u64) {
        self.collective.store(number, Ordering::Relaxed);
    }

    pub fn has_received(&self, bytes: usize) {
        self.received.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Others learn a new phase at once: it says whether they may expect that this rank moves.
    pub fn set_phase(&self, phase: Phase) {
        if self.phase.swap(phase as u8, Ordering::Relaxed) != phase as u8 {
            self.send(Up::Beat(self.progress()));
        }
    }

    pub fn send(&self, up: Up) {
        match &self.uplink {
            Uplink::Alone => {}
            Uplink::Here(hub) => locked(hub).receive(0, up),
            Uplink::There(out) => out.send(Arc::new(Frame(vec![up.encode()]))),
        }
    }

    /// Something has come from rank 0.
    pub fn receive(&self, down: Down) {
        let mut state = self.state();
        match down {
            Down::Beat(progress) => state.root = progress,
            Down::Parts { number, parts } => state.parts = Some((number, parts)),
            Down::Broken(story) => state.broken = Some(story),
            Down::Query => {
                state.promised = true;
                let next = state.next;
                drop(state);
                return self.send(Up::Promise(next));
            }
            Down::StopAt(step) => state.stop_at = Some(step),
            Down::Failure(failure) => {
                drop(state);
                self.send(Up::Learned);
                return self.fail(failure);
            }
            Down::Goodbye => state.root_left = true,
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Nothing more comes from rank 0.
    pub fn root_closed(&self) {
        let what = "its process ended without a goodbye: it was killed, it crashed, or its host went down";
        self.root_failed(what.to_owned());
    }

    pub fn root_failed(&self, what: String) {
        let state = self.state();
        if !state.root_left && !state.left {
            let failure = Failure { rank: 0, host: self.hosts[0].clone(), step: state.root.step, what };
            drop(state);
            self.fail(failure);
        }
    }

    fn fail(&self, failure: Failure) {
        let mut state = self.state();
        if state.failure.is_some() || state.left {
            return;
        }
        state.failure = Some(failure.clone());
        let callbacks = std::mem::take(&mut state.callbacks);
        drop(state);
        self.changed.notify_all();
        callbacks.into_iter().for_each(|callback| callback(&failure));
    }

    pub fn failure(&self) -> Option<Failure> {
        self.state().failure.clone()
    }

    pub fn on_failure(&self, callback: Callback) {
        let mut state = self.state();
        match state.failure.clone() {
            None => state.callbacks.push(callback),
            Some(failure) => {
                drop(state);
                callback(&failure);
            }
        }
    }

    /// Why this rank can't go on with the others, if it can't.
    fn obstacle(&self, state: &State, what: &str) -> Option<String> {
        // Ranks that break up end one after the other; the cause is the story, not who ended first.
        if let Some(story) = &state.broken {
            return Some(story.clone());
        }
        if let Some(failure) = &state.failure {
            return Some(failure.to_string());
        }
        let (who, host) = match (state.left, state.root_left) {
            (true, _) => (self.rank, &self.hosts[self.rank]),
            (false, true) => (0, &self.hosts[0]),
            (false, false) => return None,
        };
        Some(format!("the exchange {what:?} is not possible: rank {who} on {host} has finished"))
    }

    pub fn exchange(&self, what: &str, bytes: &[u8]) -> Result<Vec<Vec<u8>>, String> {
        let limit = part_limit(self.hosts.len());
        if bytes.len() > limit || what.len() > TEXT {
            return Err(format!(
                "the exchange {what:.60?} has {} bytes, more than the {limit} that a rank may give: make several smaller ones",
                bytes.len()
            ));
        }
        let mut number = locked(&self.exchanges);
        if let Some(why) = self.obstacle(&self.state(), what) {
            return Err(why);
        }
        if matches!(self.uplink, Uplink::Alone) {
            return Ok(vec![bytes.to_vec()]);
        }
        self.send(Up::Beat(self.progress()));
        self.send(Up::Exchange { number: *number, what: what.to_owned(), bytes: bytes.to_vec() });
        let mut state = self.state();
        loop {
            if let Some((_, parts)) = state.parts.take_if(|(n, _)| *n == *number) {
                *number += 1;
                return Ok(parts);
            }
            if let Some(why) = self.obstacle(&state, what) {
                return Err(why);
            }
            state = self.wait(state);
        }
    }

    pub fn begin_step(&self, step: u64) -> Result<bool, Failure> {
        let mut state = self.state();
        loop {
            if let Some(failure) = &state.failure {
                return Err(failure.clone());
            }
            if let Some(stop) = state.stop_at {
                if step < stop {
                    self.step.store(step, Ordering::Relaxed);
                }
                return Ok(step < stop);
            }
            if !state.promised || state.root_left {
                state.next = step.saturating_add(1);
                self.step.store(step, Ordering::Relaxed);
                return Ok(true);
            }
            // All ranks have been asked where they are; the answer is on its way.
            state = self.wait(state);
        }
    }

    pub fn request_stop(&self) {
        match self.uplink {
            Uplink::Alone => {
                let mut state = self.state();
                let next = state.next;
                state.stop_at.get_or_insert(next);
            }
            _ => self.send(Up::Stop),
        }
    }

    pub fn stop_at(&self) -> Option<u64> {
        self.state().stop_at
    }

    /// Whether this rank has taken its leave before; from now on it has.
    pub fn leave(&self) -> bool {
        let mut state = self.state();
        let before = std::mem::replace(&mut state.left, true);
        drop(state);
        self.changed.notify_all();
        before
    }

    pub fn has_left(&self) -> bool {
        self.state().left
    }
}
