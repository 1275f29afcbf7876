//! What ranks say to each other once they are together: to rank 0 ([`Up`]) and from rank 0 ([`Down`]).

use std::fmt;
use std::io::{self, Read};
use std::net::TcpStream;

use crate::wire::{Decoder, Encoder, Malformed};

/// The most bytes of one exchange of all ranks, and of one rank in a small world.
const TOTAL: usize = 1 << 30;
const PART: usize = 64 << 20;

/// The longest description of an exchange and the longest reason.
pub const TEXT: usize = 1024;

/// The most bytes of other frames.
const SMALL: usize = 64 << 10;

/// The kind of a frame that carries what ranks exchange, in both directions.
const EXCHANGE: u8 = 2;

/// After how many bytes of a frame the other side is heard. A network that is slower than this in six seconds is down.
const CHUNK: usize = 16 << 10;

/// The most bytes that a rank may give to an exchange.
pub fn part_limit(size: usize) -> usize {
    (TOTAL / size.max(1)).min(PART)
}

/// What a rank is doing. In `Training`, a rank that does not move while others wait for it has failed; in other phases it
/// may take as long as it needs, as long as its process lives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Phase {
    /// Reads data, compiles, records.
    #[default]
    Starting,
    /// Trains.
    Training,
    /// Measures on data that it does not train on.
    Validation,
    /// Writes or reads a checkpoint.
    Checkpoint,
}

impl Phase {
    const ALL: [Self; 4] = [Self::Starting, Self::Training, Self::Validation, Self::Checkpoint];

    pub(super) fn of_number(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }

    /// Whether others may expect that a rank in this phase moves.
    pub(super) fn must_move(self) -> bool {
        self == Self::Training
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Starting => "starting",
            Self::Training => "training",
            Self::Validation => "validation",
            Self::Checkpoint => "checkpoint",
        })
    }
}

/// How far a rank is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    pub step: u64,
    pub collective: u64,
    /// How many bytes of exchanges it has received.
    pub received: u64,
    pub phase: Phase,
}

impl Progress {
    fn encode(self, e: Encoder) -> Encoder {
        e.u64(self.step).u64(self.collective).u64(self.received).u8(self.phase as u8)
    }

    fn decode(d: &mut Decoder<'_>) -> Result<Self, Malformed> {
        let (step, collective, received) = (d.u64()?, d.u64()?, d.u64()?);
        Ok(Self { step, collective, received, phase: Phase::of_number(d.u8()?).ok_or(Malformed)? })
    }
}

/// A rank that died, hangs or gave up, as every other rank learns it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("rank {rank} on {host} failed at step {step}: {what}")]
pub struct Failure {
    /// The rank that failed.
    pub rank: usize,
    /// Its host.
    pub host: String,
    /// The last step that it said it had begun.
    pub step: u64,
    /// What happened.
    pub what: String,
}

/// From a rank to rank 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Up {
    Beat(Progress),
    Exchange {
        number: u64,
        what: String,
        bytes: Vec<u8>,
    },
    Stop,
    /// "I begin no step from this one on until I know where to stop."
    Promise(u64),
    Abandon(String),
    /// "I know of the failure."
    Learned,
    Goodbye,
}

/// From rank 0 to a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Down {
    /// Rank 0 lives, and is that far.
    Beat(Progress),
    Parts {
        number: u64,
        parts: Vec<Vec<u8>>,
    },
    /// The ranks make different exchanges; no more are possible.
    Broken(String),
    /// "Which step have you not begun yet? Wait before it."
    Query,
    /// The step that nobody begins.
    StopAt(u64),
    Failure(Failure),
    Goodbye,
}

/// The bytes of a frame, in pieces, so that the parts of an exchange need not be copied.
pub struct Frame(pub Vec<Vec<u8>>);

impl Frame {
    /// The frame as it is read at the other end.
    pub fn decode(&self) -> Result<Down, Malformed> {
        let bytes = self.0.concat();
        let (kind, body) =
            bytes.split_first().and_then(|(kind, rest)| Some((*kind, rest.get(4..)?))).ok_or(Malformed)?;
        Down::decode(kind, body)
    }
}

fn frame(kind: u8, body: Encoder) -> Vec<u8> {
    let body = body.finish();
    let mut bytes = Vec::with_capacity(5 + body.len());
    bytes.extend_from_slice(&header(kind, body.len()));
    bytes.extend_from_slice(&body);
    bytes
}

fn header(kind: u8, body: usize) -> [u8; 5] {
    // Every body is below 4 GiB: texts, and the parts of an exchange, are limited.
    let [a, b, c, d] = (body as u32).to_le_bytes();
    [kind, a, b, c, d]
}

/// The parts of an exchange for a rank.
fn encode_parts(number: u64, parts: Vec<Vec<u8>>) -> Frame {
    let body: usize = 16 + parts.iter().map(|part| 8 + part.len()).sum::<usize>();
    let start = Encoder::default().u64(number).u64(parts.len() as u64).finish();
    let mut pieces = vec![[&header(EXCHANGE, body)[..], &start].concat()];
    for part in parts {
        pieces.push((part.len() as u64).to_le_bytes().to_vec());
        pieces.push(part);
    }
    Frame(pieces)
}

/// As much of a text as fits into a frame.
fn short(text: &str) -> &str {
    let end = (0..=text.len().min(8 * TEXT)).rev().find(|&at| text.is_char_boundary(at));
    &text[..end.unwrap_or(0)]
}

impl Up {
    pub fn encode(&self) -> Vec<u8> {
        let e = Encoder::default();
        match self {
            Self::Beat(progress) => frame(1, progress.encode(e)),
            Self::Exchange { number, what, bytes } => {
                frame(EXCHANGE, e.u64(*number).text(short(what)).bytes(bytes))
            }
            Self::Stop => frame(3, e),
            Self::Promise(step) => frame(4, e.u64(*step)),
            Self::Abandon(why) => frame(5, e.text(short(why))),
            Self::Goodbye => frame(6, e),
            Self::Learned => frame(7, e),
        }
    }

    pub fn decode(kind: u8, body: &[u8]) -> Result<Self, Malformed> {
        let mut d = Decoder::new(body);
        let up = match kind {
            1 => Self::Beat(Progress::decode(&mut d)?),
            EXCHANGE => Self::Exchange { number: d.u64()?, what: d.text()?, bytes: d.bytes()?.to_vec() },
            3 => Self::Stop,
            4 => Self::Promise(d.u64()?),
            5 => Self::Abandon(d.text()?),
            6 => Self::Goodbye,
            7 => Self::Learned,
            _ => return Err(Malformed),
        };
        d.end()?;
        Ok(up)
    }

    /// The most bytes of a frame in a world of this size.
    pub fn limit(kind: u8, size: usize) -> usize {
        if is_of_exchange(kind) { part_limit(size) + SMALL } else { SMALL }
    }
}

impl Down {
    pub fn encode(self) -> Frame {
        let e = Encoder::default();
        let bytes = match self {
            Self::Beat(progress) => frame(1, progress.encode(e)),
            Self::Parts { number, parts } => return encode_parts(number, parts),
            Self::Broken(story) => frame(3, e.text(short(&story))),
            Self::Query => frame(4, e),
            Self::StopAt(step) => frame(5, e.u64(step)),
            Self::Failure(f) => {
                frame(6, e.u64(f.rank as u64).text(short(&f.host)).u64(f.step).text(short(&f.what)))
            }
            Self::Goodbye => frame(7, e),
        };
        Frame(vec![bytes])
    }

    pub fn decode(kind: u8, body: &[u8]) -> Result<Self, Malformed> {
        let mut d = Decoder::new(body);
        let down = match kind {
            1 => Self::Beat(Progress::decode(&mut d)?),
            EXCHANGE => {
                let number = d.u64()?;
                let mut parts = Vec::new();
                for _ in 0..d.u64()? {
                    parts.push(d.bytes()?.to_vec());
                }
                Self::Parts { number, parts }
            }
            3 => Self::Broken(d.text()?),
            4 => Self::Query,
            5 => Self::StopAt(d.u64()?),
            6 => Self::Failure(Failure { rank: d.size()?, host: d.text()?, step: d.u64()?, what: d.text()? }),
            7 => Self::Goodbye,
            _ => return Err(Malformed),
        };
        d.end()?;
        Ok(down)
    }

    /// The most bytes of a frame in a world of this size.
    pub fn limit(kind: u8, size: usize) -> usize {
        if is_of_exchange(kind) { part_limit(size) * size + SMALL + 8 * size } else { SMALL }
    }
}

/// Whether a frame carries what ranks exchange, which may take long on a slow network.
pub fn is_of_exchange(kind: u8) -> bool {
    kind == EXCHANGE
}

/// Reads a frame. It calls `heard` whenever some of it has arrived, with its kind and the number of bytes.
pub fn read(
    mut stream: &TcpStream,
    limit: impl Fn(u8) -> usize,
    heard: impl Fn(u8, usize),
) -> io::Result<(u8, Vec<u8>)> {
    let mut header = [0; 5];
    stream.read_exact(&mut header)?;
    let [kind, length @ ..] = header;
    heard(kind, header.len());
    let length = u32::from_le_bytes(length) as usize;
    if length > limit(kind) {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut body = vec![0; length];
    for chunk in body.chunks_mut(CHUNK) {
        stream.read_exact(chunk)?;
        heard(kind, chunk.len());
    }
    Ok((kind, body))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn progress() -> Progress {
        Progress { step: 7, collective: 1 << 40, received: 9, phase: Phase::Checkpoint }
    }

    #[test]
    fn frames_are_read_as_they_were_written() {
        let ups = [
            Up::Beat(progress()),
            Up::Exchange { number: 3, what: "loss".to_owned(), bytes: vec![1, 2] },
            Up::Stop,
            Up::Promise(9),
            Up::Abandon("out of memory".to_owned()),
            Up::Learned,
            Up::Goodbye,
        ];
        for up in ups {
            let bytes = up.encode();
            assert_eq!(u32::from_le_bytes(bytes[1..5].try_into().unwrap()) as usize, bytes.len() - 5);
            assert_eq!(Up::decode(bytes[0], &bytes[5..]), Ok(up.clone()));
            assert_eq!(
                Up::decode(bytes[0], &[&bytes[5..], &[0]].concat()),
                Err(Malformed),
                "{up:?} with a byte more"
            );
        }
        let failure = Failure { rank: 2, host: "h".to_owned(), step: 4, what: "gone".to_owned() };
        let downs = [
            Down::Beat(progress()),
            Down::Parts { number: 3, parts: vec![vec![1], vec![], vec![2, 3]] },
            Down::Broken("story".to_owned()),
            Down::Query,
            Down::StopAt(8),
            Down::Failure(failure),
            Down::Goodbye,
        ];
        for down in downs {
            let frame = down.clone().encode();
            assert_eq!(frame.decode(), Ok(down.clone()));
            let bytes = frame.0.concat();
            assert_eq!(u32::from_le_bytes(bytes[1..5].try_into().unwrap()) as usize, bytes.len() - 5);
            for n in 5..bytes.len() {
                assert_eq!(Down::decode(bytes[0], &bytes[5..n]), Err(Malformed), "{down:?} cut at {n}");
            }
        }
        assert_eq!((Up::decode(0, &[]), Down::decode(99, &[])), (Err(Malformed), Err(Malformed)));
    }

    #[test]
    fn a_long_reason_is_cut_so_that_its_frame_is_read() {
        let bytes = Up::Abandon("é".repeat(1 << 20)).encode();
        assert!(bytes.len() - 5 <= Up::limit(5, 2));
        assert!(matches!(Up::decode(5, &bytes[5..]), Ok(Up::Abandon(why)) if why.len() > TEXT));
    }

    #[test]
    fn what_a_full_exchange_takes_is_within_the_limits() {
        for size in [2, 8, 64, 4096] {
            let part = part_limit(size);
            assert!(Up::limit(2, size) > part && Down::limit(2, size) > (part + 8) * size + 16);
            assert!(Down::limit(2, size) <= u32::MAX as usize);
        }
    }
}
