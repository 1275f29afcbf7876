//! One attempt of a member to reach rank 0 and to be taken in.

use std::io;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use super::TALK;
use super::message::{self, Answer, Join, MemberHello, PROTOCOL, RootHello};
use super::root::no_token;
use crate::address::is_private;
use crate::error::{Error, ErrorKind};
use crate::rendezvous::Rendezvous;
use crate::token::{Conversation, Label, TOKEN_VARIABLE, random};
use crate::wire::Timed;

/// Why a member was not taken in.
pub enum Setback {
    /// Trying again may help.
    Again(String),
    Final(Error),
}

impl From<Error> for Setback {
    fn from(error: Error) -> Self {
        Self::Final(error)
    }
}

fn lost(at: &str) -> impl Fn(io::Error) -> Setback {
    move |error| Setback::Again(format!("{at} ended the conversation ({error})"))
}

/// A connection to rank 0, which has taken this rank in. The verdict comes before the deadline.
pub struct TakenIn {
    pub stream: TcpStream,
    pub talk: Conversation,
    pub deadline: Instant,
}

/// Resolves a host, tries its addresses, and asks to be taken in. With a session, only by the rank 0 that has it.
pub fn dial(
    rendezvous: &Rendezvous,
    host: &str,
    port: u16,
    session: Option<[u8; 16]>,
    deadline: Instant,
) -> Result<TakenIn, Setback> {
    let resolved = (host, port).to_socket_addrs().map_err(|error| {
        Setback::Again(format!(
            "the host {host} is not known here ({error}); check its spelling and that its name resolves on this host"
        ))
    })?;
    let mut setback = Setback::Again(format!("the host {host} has no address"));
    for address in resolved {
        match ask(rendezvous, host, address, session, deadline) {
            Ok(taken_in) => return Ok(taken_in),
            Err(error @ Setback::Final(_)) => return Err(error),
            Err(again) => setback = again,
        }
    }
    Err(setback)
}

fn connect(address: SocketAddr, deadline: Instant) -> Result<TcpStream, Setback> {
    let left = deadline.saturating_duration_since(Instant::now()).clamp(Duration::from_millis(1), TALK);
    let stream = TcpStream::connect_timeout(&address, left)
        .map_err(|error| Setback::Again(format!("nobody answers at {address} ({error})")))?;
    stream.set_nodelay(true).map_err(lost(&address.to_string()))?;
    Ok(stream)
}

/// The session of the rank 0 that listens at an address, if one does.
pub fn session_at(host: &str, port: u16) -> Option<[u8; 16]> {
    let deadline = Instant::now() + TALK / 2;
    let addresses = (host, port).to_socket_addrs().ok()?;
    addresses.into_iter().find_map(|address| {
        let stream = connect(address, deadline).ok()?;
        let mut timed = Timed { stream: &stream, deadline };
        MemberHello { protocol: PROTOCOL, random: random().ok()? }.send(&mut timed).ok()?;
        Some(RootHello::receive(&mut timed).ok()??.session)
    })
}

fn ask(
    rendezvous: &Rendezvous,
    host: &str,
    address: SocketAddr,
    session: Option<[u8; 16]>,
    deadline: Instant,
) -> Result<TakenIn, Setback> {
    let token = rendezvous.token.as_ref();
    if token.is_none() && !rendezvous.public && !is_private(address.ip()) {
        return Err(no_token(host, &address.ip().to_string()).into());
    }
    let at = address.to_string();
    let stream = connect(address, deadline)?;
    let mut timed = Timed { stream: &stream, deadline: Instant::now() + TALK };
    let hello = MemberHello { protocol: PROTOCOL, random: random()? };
    hello.send(&mut timed).map_err(lost(&at))?;
    let root = RootHello::receive(&mut timed).map_err(lost(&at))?;
    let root =
        root.ok_or_else(|| Setback::Again(format!("what listens at {at} is not rank 0 of a refrain job")))?;
    if root.protocol != PROTOCOL {
        let message = format!(
            "rank 0 at {at} speaks version {} of the rendezvous protocol and this rank version {PROTOCOL}: install the same \
             refrain on every host",
            root.protocol
        );
        return Err(Error::new(ErrorKind::Protocol, message).into());
    }
    if session.is_some_and(|session| session != root.session) {
        return Err(Setback::Again(format!("another job than the file says listens at {at}")));
    }
    if root.token != token.is_some() {
        let (with, without) = if root.token { ("rank 0", "this rank") } else { ("this rank", "rank 0") };
        let message = format!(
            "{with} has a secret and {without} has none: give every rank the same {TOKEN_VARIABLE}, or none"
        );
        return Err(Error::new(ErrorKind::Token, message).into());
    }
    let talk = Conversation { member: hello.random, root: root.random };
    let world = &rendezvous.world;
    let join = Join {
        rank: world.rank,
        host: rendezvous.host.clone(),
        job: world.job.clone(),
        attempt: world.attempt,
        facts: rendezvous.facts.clone(),
    };
    message::send(&mut timed, &talk, token, Label::Join, &join.encode()).map_err(lost(&at))?;
    let (body, known) = message::receive(&mut timed, &talk, token, Label::Answer).map_err(lost(&at))?;
    let answer =
        Answer::decode(&body).map_err(|_| Setback::Again(format!("{at} sent a malformed message")))?;
    match answer {
        // Rank 0 has another secret, so its proof can't hold.
        Answer::Refused(error) if error.kind() == ErrorKind::Token => Err(error.into()),
        _ if !known => {
            let message = format!(
                "who listens at {at} does not know the secret: check the address and {TOKEN_VARIABLE}"
            );
            Err(Error::new(ErrorKind::Token, message).into())
        }
        Answer::Refused(error) => Err(error.into()),
        Answer::Later { why } => Err(Setback::Again(format!("{why} (at {at})"))),
        Answer::TakenIn { millis } => {
            let deadline = Instant::now() + Duration::from_millis(millis.min(1 << 40));
            Ok(TakenIn { stream, talk, deadline })
        }
    }
}
