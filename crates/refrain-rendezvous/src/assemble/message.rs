//! The messages by which ranks come together.

use std::io::{self, Write};

use crate::error::{Error, ErrorKind};
use crate::rendezvous::{Fact, PAYLOAD};
use crate::token::{Conversation, Label, Token};
use crate::wire::{Decoder, Encoder, Malformed, Timed};

const MAGIC: [u8; 8] = *b"REFRAIN\n";

/// Both sides must speak the same version.
pub const PROTOCOL: u8 = 1;

/// The most bytes of who somebody is, and of the answer to it.
const SMALL: usize = 64 << 10;

/// The most bytes of a verdict: the payload and the names of many hosts.
const LARGE: usize = PAYLOAD + (16 << 20);

/// What a member says first.
pub struct MemberHello {
    pub protocol: u8,
    pub random: [u8; 32],
}

impl MemberHello {
    pub fn send(&self, out: &mut Timed<'_>) -> io::Result<()> {
        out.write_all(&[&MAGIC[..], &[self.protocol], &self.random].concat())
    }

    /// `None` if it is something else that speaks.
    pub fn receive(from: &mut Timed<'_>) -> io::Result<Option<Self>> {
        if from.array()? != MAGIC {
            return Ok(None);
        }
        let [protocol] = from.array()?;
        Ok(Some(Self { protocol, random: from.array()? }))
    }
}

/// What rank 0 says first.
pub struct RootHello {
    pub protocol: u8,
    pub session: [u8; 16],
    pub random: [u8; 32],
    pub token: bool,
}

impl RootHello {
    pub fn send(&self, out: &mut Timed<'_>) -> io::Result<()> {
        out.write_all(
            &[&MAGIC[..], &[self.protocol], &self.session, &self.random, &[u8::from(self.token)]].concat(),
        )
    }

    pub fn receive(from: &mut Timed<'_>) -> io::Result<Option<Self>> {
        if from.array()? != MAGIC {
            return Ok(None);
        }
        let [protocol] = from.array()?;
        let (session, random) = (from.array()?, from.array()?);
        let [token] = from.array()?;
        Ok(Some(Self { protocol, session, random, token: token != 0 }))
    }
}

/// Sends a message and the proof that its sender knows the secret.
pub fn send(
    out: &mut Timed<'_>,
    talk: &Conversation,
    token: Option<&Token>,
    label: Label,
    body: &[u8],
) -> io::Result<()> {
    let length = u32::try_from(body.len()).map_err(|_| io::ErrorKind::InvalidData)?;
    out.write_all(&[&length.to_le_bytes()[..], body, &talk.sign(token, label, body)].concat())
}

/// Receives a message, and whether its proof holds.
pub fn receive(
    from: &mut Timed<'_>,
    talk: &Conversation,
    token: Option<&Token>,
    label: Label,
) -> io::Result<(Vec<u8>, bool)> {
    let limit = if matches!(label, Label::Verdict) { LARGE } else { SMALL };
    let body = from.message(limit)?;
    let proof = from.array()?;
    let known = talk.verify(token, label, &body, &proof);
    Ok((body, known))
}

/// Who a member is.
pub struct Join {
    pub rank: usize,
    pub host: String,
    pub job: String,
    pub attempt: u64,
    pub facts: Vec<Fact>,
}

impl Join {
    pub fn encode(&self) -> Vec<u8> {
        let e = Encoder::default().u64(self.rank as u64).text(&self.host).text(&self.job).u64(self.attempt);
        let e = e.u64(self.facts.len() as u64);
        self.facts.iter().fold(e, |e, fact| e.text(&fact.name).text(&fact.value)).finish()
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut d = Decoder::new(bytes);
        let (rank, host, job, attempt) = (d.size()?, d.text()?, d.text()?, d.u64()?);
        let mut facts = Vec::new();
        for _ in 0..d.u64()? {
            facts.push(Fact { name: d.text()?, value: d.text()? });
        }
        d.end()?;
        Ok(Self { rank, host, job, attempt, facts })
    }
}

/// What rank 0 answers at once.
pub enum Answer {
    /// The verdict comes within this many milliseconds.
    TakenIn {
        millis: u64,
    },
    /// Not now; it may be otherwise later, when another job or attempt has ended.
    Later {
        why: String,
    },
    Refused(Error),
}

impl Answer {
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::TakenIn { millis } => Encoder::default().u8(0).u64(*millis),
            Self::Later { why } => Encoder::default().u8(1).text(why),
            Self::Refused(error) => {
                Encoder::default().u8(2).u8(error.kind().number()).text(&error.to_string())
            }
        }
        .finish()
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut d = Decoder::new(bytes);
        let answer = match d.u8()? {
            0 => Self::TakenIn { millis: d.u64()? },
            1 => Self::Later { why: d.text()? },
            2 => Self::Refused(Error::new(ErrorKind::of_number(d.u8()?), d.text()?)),
            _ => return Err(Malformed),
        };
        d.end()?;
        Ok(answer)
    }
}

/// What rank 0 says when all are there, or when it does not wait any longer.
pub type Verdict = Result<(Vec<String>, Vec<u8>), Error>;

pub fn encode_verdict(verdict: &Verdict) -> Vec<u8> {
    match verdict {
        Ok((hosts, payload)) => {
            let e = Encoder::default().u8(0).u64(hosts.len() as u64);
            hosts.iter().fold(e, |e, host| e.text(host)).bytes(payload)
        }
        Err(error) => Encoder::default().u8(1).u8(error.kind().number()).text(&error.to_string()),
    }
    .finish()
}

pub fn decode_verdict(bytes: &[u8]) -> Result<Verdict, Malformed> {
    let mut d = Decoder::new(bytes);
    let verdict = match d.u8()? {
        0 => {
            let mut hosts = Vec::new();
            for _ in 0..d.u64()? {
                hosts.push(d.text()?);
            }
            Ok((hosts, d.bytes()?.to_vec()))
        }
        1 => Err(Error::new(ErrorKind::of_number(d.u8()?), d.text()?)),
        _ => return Err(Malformed),
    };
    d.end()?;
    Ok(verdict)
}
