//! A rank other than 0 finds rank 0, is taken in, and waits for the verdict.

use std::io;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use super::Waiting;
use super::dial::{Setback, TakenIn, dial};
use super::file::Found;
use super::message;
use crate::address::Address;
use crate::error::{Error, ErrorKind, Result};
use crate::rendezvous::Rendezvous;
use crate::token::Label;
use crate::wire::Timed;

/// What a member gets from rank 0.
pub struct Admission {
    pub stream: TcpStream,
    /// The hosts of all ranks.
    pub hosts: Vec<String>,
    pub payload: Vec<u8>,
}

/// Tries to reach rank 0 until the deadline.
pub fn assemble(rendezvous: &Rendezvous, address: &Address, deadline: Instant) -> Result<Admission> {
    let (rank, host) = (rendezvous.world.rank, &rendezvous.host);
    let mut waiting = Waiting::new();
    let mut pause = Duration::from_millis(20);
    loop {
        let setback = match attempt(rendezvous, address, deadline) {
            Ok(admission) => return Ok(admission),
            Err(Setback::Final(error)) => return Err(error),
            Err(Setback::Again(why)) => why,
        };
        if Instant::now() + pause >= deadline {
            let message = format!(
                "rank {rank} on {host} did not reach rank 0 at {address} within {:?}: {setback}. Check that rank 0 runs, what it \
                 prints, that the address is that of its host as seen from here, and that no firewall closes the port",
                rendezvous.assemble
            );
            return Err(Error::new(ErrorKind::Unreachable, message));
        }
        waiting.say(rendezvous, || format!("rank {rank} on {host} waits for rank 0 at {address}: {setback}"));
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_secs(1));
    }
}

fn attempt(
    rendezvous: &Rendezvous,
    address: &Address,
    deadline: Instant,
) -> std::result::Result<Admission, Setback> {
    let taken_in = match address {
        Address::Tcp { host, port } => dial(rendezvous, host, *port, None, deadline)?,
        Address::File(path) => {
            Found::read(path, rendezvous).map_err(Setback::Again)?.dial(rendezvous, deadline)?
        }
    };
    let TakenIn { stream, talk, deadline } = taken_in;
    let mut timed = Timed { stream: &stream, deadline };
    let received = message::receive(&mut timed, &talk, rendezvous.token.as_ref(), Label::Verdict);
    let (body, known) = received.map_err(|error| match error.kind() {
        io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => {
            let message =
                format!("rank 0 at {address} took this rank in and then fell silent: look at what it prints");
            Setback::Final(Error::new(ErrorKind::Unreachable, message))
        }
        _ => Setback::Again("rank 0 took this rank in and then went away".to_owned()),
    })?;
    let malformed = || {
        Setback::Final(Error::new(
            ErrorKind::Protocol,
            format!("rank 0 at {address} sent a malformed message"),
        ))
    };
    if !known {
        return Err(malformed());
    }
    let (hosts, payload) = message::decode_verdict(&body).map_err(|_| malformed())??;
    if hosts.len() != rendezvous.world.size {
        return Err(malformed());
    }
    stream
        .set_read_timeout(None)
        .and_then(|()| stream.set_write_timeout(None))
        .map_err(|e| Setback::Again(format!("the connection to rank 0 ended ({e})")))?;
    Ok(Admission { stream, hosts, payload })
}
