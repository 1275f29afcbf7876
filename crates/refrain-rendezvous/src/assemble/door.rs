//! The port of rank 0: who connects is asked who it is, each on a thread of its own, so that nobody delays the others.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::message::{self, Answer, Join, MemberHello, PROTOCOL, RootHello};
use super::root::{Assembly, JoinedRank, Stage};
use super::{TALK, name_of};
use crate::address::is_private;
use crate::error::{Error, ErrorKind, Result};
use crate::rendezvous::Rendezvous;
use crate::token::{Conversation, Label, random};
use crate::wire::{Timed, close};

/// How many conversations may be open beside those of the ranks; who comes then must come again.
const STRANGERS: usize = 256;

/// How many different reasons for turning somebody away are kept for the message.
const REASONS: usize = 32;

/// The port of rank 0, open as long as this is kept.
pub struct Door {
    pub entrance: Arc<Entrance>,
    thread: Option<JoinHandle<()>>,
}

/// What the threads of the port share.
pub struct Entrance {
    pub rendezvous: Rendezvous,
    pub session: [u8; 16],
    /// Until when ranks are taken in.
    pub deadline: Instant,
    assembly: Mutex<Assembly>,
    pub changed: Condvar,
    turned_away: Mutex<BTreeMap<String, usize>>,
    conversations: AtomicUsize,
    closed: AtomicBool,
}

impl Door {
    pub fn open(
        rendezvous: &Rendezvous,
        listener: TcpListener,
        session: [u8; 16],
        deadline: Instant,
    ) -> Result<Self> {
        let system =
            |e: io::Error| Error::new(ErrorKind::System, format!("rank 0 can't watch its port: {e}"));
        listener.set_nonblocking(true).map_err(system)?;
        let entrance = Arc::new(Entrance {
            rendezvous: rendezvous.clone(),
            session,
            deadline,
            assembly: Mutex::new(Assembly::new(rendezvous.world.size)),
            changed: Condvar::new(),
            turned_away: Mutex::default(),
            conversations: AtomicUsize::new(0),
            closed: AtomicBool::new(false),
        });
        let shared = entrance.clone();
        let thread = std::thread::Builder::new().name("rendezvous-port".to_owned());
        let thread = thread.spawn(move || shared.watch(&listener)).map_err(system)?;
        Ok(Self { entrance, thread: Some(thread) })
    }

    /// From now on, who comes is told whether its place is taken. The function says whether a rank takes part.
    pub fn together(&self, takes_part: Arc<dyn Fn(usize) -> bool + Send + Sync>) {
        self.entrance.assembly().stage = Stage::Together(takes_part);
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.entrance.closed.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // It has nothing to report.
            let _ = thread.join();
        }
    }
}

impl Entrance {
    pub fn assembly(&self) -> MutexGuard<'_, Assembly> {
        self.assembly.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn watch(self: &Arc<Self>, listener: &TcpListener) {
        while !self.closed.load(Ordering::Relaxed) {
            match listener.accept() {
                Ok((stream, peer)) => self.ask(stream, peer),
                // Nobody is there, or the process has too many files open: somebody may end meanwhile.
                Err(_) => {
                    let assembling = matches!(self.assembly().stage, Stage::Assembling);
                    std::thread::sleep(Duration::from_millis(if assembling { 2 } else { 50 }));
                }
            }
        }
    }

    fn ask(self: &Arc<Self>, stream: TcpStream, peer: SocketAddr) {
        let most = STRANGERS + 2 * self.rendezvous.world.size;
        if self.conversations.fetch_add(1, Ordering::Relaxed) < most {
            let shared = self.clone();
            let thread = std::thread::Builder::new().name("rendezvous-talk".to_owned()).stack_size(128 << 10);
            let spawned = thread.spawn(move || {
                shared.talk(stream, peer);
                shared.conversations.fetch_sub(1, Ordering::Relaxed);
            });
            if spawned.is_ok() {
                return;
            }
        }
        self.conversations.fetch_sub(1, Ordering::Relaxed);
    }

    fn talk(&self, stream: TcpStream, peer: SocketAddr) {
        if let Err(why) = self.converse(stream, peer) {
            let mut turned_away = self.turned_away.lock().unwrap_or_else(PoisonError::into_inner);
            let line = format!("{}: {why}", peer.ip().to_canonical());
            if turned_away.len() < REASONS || turned_away.contains_key(&line) {
                *turned_away.entry(line).or_default() += 1;
            }
        }
    }

    /// Who was turned away, for the message about missing ranks.
    pub fn turned_away(&self) -> String {
        let turned_away = self.turned_away.lock().unwrap_or_else(PoisonError::into_inner);
        turned_away.iter().map(|(line, times)| format!("\n  turned away {times} times: {line}")).collect()
    }

    /// The conversation with somebody who connected; the error is why it was turned away.
    fn converse(&self, stream: TcpStream, peer: SocketAddr) -> std::result::Result<(), String> {
        let lost = |e: io::Error| match e.kind() {
            io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => "it said too little in time".to_owned(),
            _ => "it closed the connection".to_owned(),
        };
        stream.set_nonblocking(false).and_then(|()| stream.set_nodelay(true)).map_err(lost)?;
        let here = stream.local_addr().map_err(lost)?;
        if !may_talk(&self.rendezvous, here.ip(), peer.ip()) {
            return Err("it came over a public address, and the job has no secret".to_owned());
        }
        let token = self.rendezvous.token.as_ref();
        let mut timed = Timed { stream: &stream, deadline: Instant::now() + TALK };
        let hello = MemberHello::receive(&mut timed).map_err(lost)?;
        let hello = hello.ok_or("it does not speak the protocol of the rendezvous")?;
        let random = random().map_err(|e| e.to_string())?;
        let mine = RootHello { protocol: PROTOCOL, session: self.session, random, token: token.is_some() };
        mine.send(&mut timed).map_err(lost)?;
        if hello.protocol != PROTOCOL {
            return Err(format!(
                "it speaks version {} of the protocol and rank 0 version {PROTOCOL}",
                hello.protocol
            ));
        }
        let talk = Conversation { member: hello.random, root: random };
        let (body, known) = message::receive(&mut timed, &talk, token, Label::Join).map_err(lost)?;
        let join = Join::decode(&body).map_err(|_| "it sent a malformed message")?;
        let mut answer = |answer: Answer| {
            message::send(&mut timed, &talk, token, Label::Answer, &answer.encode()).map_err(lost)
        };
        if !known {
            let message = "the secret of this rank is not that of rank 0: give every rank the same REFRAIN_RENDEZVOUS_TOKEN";
            answer(Answer::Refused(Error::new(ErrorKind::Token, message)))?;
            return Err("its secret is another one, or none".to_owned());
        }
        let world = &self.rendezvous.world;
        if (&join.job, join.attempt) != (&world.job, world.attempt) {
            let (theirs, ours) = (name_of(&join.job, join.attempt), name_of(&world.job, world.attempt));
            answer(Answer::Later {
                why: format!("rank 0 there belongs to {ours}, and this rank to {theirs}"),
            })?;
            return Err(format!("rank {} on {} belongs to {theirs}", join.rank, join.host));
        }
        // The lock is held until the answer is sent, so that the verdict follows it.
        let mut assembly = self.assembly();
        let refusal = assembly.refusal(&self.rendezvous, &join);
        let taken_in = refusal.is_none();
        let left = self.deadline.saturating_duration_since(Instant::now()) + 3 * TALK;
        let millis = u64::try_from(left.as_millis()).unwrap_or(u64::MAX);
        let decision = refusal.unwrap_or(Answer::TakenIn { millis });
        let sent = answer(decision);
        if taken_in && sent.is_ok() {
            let Join { rank, host, facts, .. } = join;
            assembly.add(&self.rendezvous, rank, JoinedRank { stream, talk, host, facts });
        } else if !taken_in {
            close(&stream);
        }
        drop(assembly);
        self.changed.notify_all();
        sent
    }
}

/// Without a secret, whoever comes over a public address is turned away, whatever the address of the rendezvous is called.
fn may_talk(rendezvous: &Rendezvous, here: IpAddr, peer: IpAddr) -> bool {
    rendezvous.token.is_some() || rendezvous.public || (is_private(here) && is_private(peer))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::token::Token;
    use crate::world::World;

    #[test]
    fn over_a_public_address_only_who_has_a_secret_is_asked() {
        let (private, public) = ([10, 0, 0, 1].into(), [8, 8, 8, 8].into());
        let open = Rendezvous::new(World::one());
        assert!(may_talk(&open, private, private));
        assert!(!may_talk(&open, public, private) && !may_talk(&open, private, public));
        let token = Some(Token::new("0123456789abcdef").unwrap());
        for guarded in [open.clone().token(token), open.allow_public_without_token(true)] {
            assert!(may_talk(&guarded, public, public));
        }
    }
}
