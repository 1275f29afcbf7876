//! Bytes on a connection. Everything that is read has a bound, so that a stranger can't make a rank allocate or wait.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

/// What was received is not what the protocol says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

/// Builds the bytes of a message.
#[derive(Default)]
pub struct Encoder(Vec<u8>);

impl Encoder {
    pub fn u8(mut self, value: u8) -> Self {
        self.0.push(value);
        self
    }

    pub fn u64(mut self, value: u64) -> Self {
        self.0.extend_from_slice(&value.to_le_bytes());
        self
    }

    /// Bytes with their length in front.
    pub fn bytes(self, value: &[u8]) -> Self {
        let mut encoder = self.u64(value.len() as u64);
        encoder.0.extend_from_slice(value);
        encoder
    }

    pub fn text(self, value: &str) -> Self {
        self.bytes(value.as_bytes())
    }

    pub fn finish(self) -> Vec<u8> {
        self.0
    }
}

/// Takes the bytes of a message apart.
pub struct Decoder<'a>(&'a [u8]);

impl<'a> Decoder<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    fn take(&mut self, n: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.0.split_at_checked(n).ok_or(Malformed)?;
        self.0 = rest;
        Ok(taken)
    }

    pub fn u8(&mut self) -> Result<u8, Malformed> {
        Ok(self.take(1)?[0])
    }

    pub fn u64(&mut self) -> Result<u64, Malformed> {
        Ok(u64::from_le_bytes(self.take(8)?.try_into().map_err(|_| Malformed)?))
    }

    pub fn size(&mut self) -> Result<usize, Malformed> {
        usize::try_from(self.u64()?).map_err(|_| Malformed)
    }

    pub fn bytes(&mut self) -> Result<&'a [u8], Malformed> {
        let n = self.size()?;
        self.take(n)
    }

    /// Text of another process, for messages: without control characters, which a terminal might obey.
    pub fn text(&mut self) -> Result<String, Malformed> {
        let text = std::str::from_utf8(self.bytes()?).map_err(|_| Malformed)?;
        Ok(text.chars().map(|c| if c.is_control() && c != '\n' { '?' } else { c }).collect())
    }

    pub fn end(self) -> Result<(), Malformed> {
        if self.0.is_empty() { Ok(()) } else { Err(Malformed) }
    }
}

/// A connection on which a whole conversation has one deadline, however slowly the other side sends.
pub struct Timed<'a> {
    pub stream: &'a TcpStream,
    pub deadline: Instant,
}

impl Timed<'_> {
    fn left(&self) -> io::Result<Duration> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            Err(io::ErrorKind::TimedOut.into())
        } else {
            Ok(left.max(Duration::from_millis(1)))
        }
    }

    /// Reads bytes of a known number.
    pub fn array<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    /// Reads a message with its length in front.
    pub fn message(&mut self, limit: usize) -> io::Result<Vec<u8>> {
        let length = u32::from_le_bytes(self.array()?) as usize;
        if length > limit {
            return Err(io::Error::new(io::ErrorKind::InvalidData, format!("a message of {length} bytes")));
        }
        let mut bytes = vec![0; length];
        self.read_exact(&mut bytes)?;
        Ok(bytes)
    }
}

impl Read for Timed<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(Some(self.left()?))?;
        (&mut &*self.stream).read(buffer)
    }
}

impl Write for Timed<'_> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(Some(self.left()?))?;
        (&mut &*self.stream).write(buffer)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Whether the other side of a connection that has nothing to say yet is still there.
pub fn is_open(stream: &TcpStream) -> bool {
    if stream.set_nonblocking(true).is_err() {
        return false;
    }
    let peeked = stream.peek(&mut [0]);
    let blocking = stream.set_nonblocking(false).is_ok();
    blocking && matches!(peeked, Err(e) if e.kind() == io::ErrorKind::WouldBlock)
}

/// Ends a connection in both directions; whoever reads from it notices.
pub fn close(stream: &TcpStream) {
    // It may be closed already.
    let _ = stream.shutdown(Shutdown::Both);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_read_as_they_were_written() {
        let bytes = Encoder::default().u8(7).u64(1 << 40).bytes(&[1, 2]).text("grüß").finish();
        let mut d = Decoder::new(&bytes);
        assert_eq!(
            (d.u8(), d.u64(), d.bytes(), d.text()),
            (Ok(7), Ok(1 << 40), Ok(&[1, 2][..]), Ok("grüß".to_owned()))
        );
        assert_eq!(d.end(), Ok(()));
    }

    #[test]
    fn short_long_and_lying_messages_are_malformed() {
        let bytes = Encoder::default().bytes(&[1, 2, 3]).finish();
        for n in 0..bytes.len() {
            assert_eq!(Decoder::new(&bytes[..n]).bytes(), Err(Malformed), "{n}");
        }
        assert_eq!(Decoder::new(&Encoder::default().u64(u64::MAX).finish()).bytes(), Err(Malformed));
        assert_eq!(Decoder::new(&bytes).end(), Err(Malformed));
        assert_eq!(Decoder::new(&Encoder::default().bytes(&[0xff]).finish()).text(), Err(Malformed));
    }

    #[test]
    fn text_of_others_cannot_steer_a_terminal() {
        let bytes = Encoder::default().text("a\x1b[2Jb\r\nc").finish();
        assert_eq!(Decoder::new(&bytes).text(), Ok("a?[2Jb?\nc".to_owned()));
    }

    fn connected() -> (TcpStream, TcpStream) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (near, listener.accept().unwrap().0)
    }

    #[test]
    fn a_message_is_not_read_if_it_says_that_it_is_too_long() {
        let (near, mut far) = connected();
        let mut timed = Timed { stream: &near, deadline: Instant::now() + Duration::from_secs(20) };
        far.write_all(&[&3_u32.to_le_bytes()[..], b"abc", &4_u32.to_le_bytes()].concat()).unwrap();
        assert_eq!(timed.message(3).unwrap(), b"abc");
        assert_eq!(timed.message(3).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn who_sends_a_byte_now_and_then_is_cut_off_at_the_deadline() {
        let (near, mut far) = connected();
        let trickle = std::thread::spawn(move || {
            (0..1000).try_for_each(|_| {
                std::thread::sleep(Duration::from_millis(10));
                far.write_all(&[0])
            })
        });
        let mut timed = Timed { stream: &near, deadline: Instant::now() + Duration::from_millis(200) };
        assert!(timed.array::<500>().is_err());
        drop(near);
        assert!(trickle.join().unwrap().is_err());
    }

    #[test]
    fn a_connection_is_open_until_the_other_side_ends_it() {
        let (near, far) = connected();
        assert!(is_open(&near));
        drop(far);
        while is_open(&near) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
