//! Where the ranks of a job meet.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;

use crate::error::{Error, ErrorKind};

/// Where the ranks of a job meet: `tcp://HOST:PORT`, where rank 0 listens on that port of that host, or
/// `file:///PATH`, a file on a disk that all hosts share, in which rank 0 writes down where it listens.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Address {
    /// Rank 0 listens on this port of this host.
    Tcp {
        /// A name or a number; an IPv6 number without its brackets.
        host: String,
        /// The port, not 0.
        port: u16,
    },
    /// Rank 0 listens on a free port and writes it into this file.
    File(PathBuf),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port } if host.contains(':') => write!(f, "tcp://[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "tcp://{host}:{port}"),
            Self::File(path) => write!(f, "file://{}", path.display()),
        }
    }
}

impl FromStr for Address {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let wrong = |why: &str| {
            let form = "write tcp://HOST:PORT, with the host of rank 0, or file:///PATH on a shared disk";
            Error::new(ErrorKind::Address, format!("the rendezvous address {text:?} {why}: {form}"))
        };
        if let Some(path) = text.strip_prefix("file://") {
            if !path.starts_with('/') || path.ends_with('/') {
                return Err(wrong("does not name a file by its whole path"));
            }
            return Ok(Self::File(PathBuf::from(path)));
        }
        let rest =
            text.strip_prefix("tcp://").ok_or_else(|| wrong("has neither tcp:// nor file:// in front"))?;
        let (host, port) = rest.rsplit_once(':').ok_or_else(|| wrong("has no port"))?;
        let host = match host.strip_prefix('[').map(|h| h.strip_suffix(']')) {
            Some(None) => return Err(wrong("has a bracket that does not close")),
            Some(Some(number)) => number,
            None if host.contains(':') => return Err(wrong("has an IPv6 number without brackets")),
            None => host,
        };
        if host.is_empty() || host.contains(|c: char| c.is_whitespace() || c == '/') {
            return Err(wrong("has no name of a host"));
        }
        match port.parse() {
            Ok(0) => Err(wrong("has port 0, which nobody could find")),
            Ok(port) => Ok(Self::Tcp { host: host.to_owned(), port }),
            Err(_) => Err(wrong("has a port that is no number from 1 to 65535")),
        }
    }
}

/// Whether an address is of this host or of a private network, where no secret is demanded.
pub fn is_private(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(a) => a.is_loopback() || a.is_private() || a.is_link_local(),
        IpAddr::V6(a) => a.is_loopback() || a.is_unique_local() || a.is_unicast_link_local(),
    }
}

/// Whether a host can only mean this host, so that nobody else needs to reach the port.
pub fn is_loopback_name(host: &str) -> bool {
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|a| a.to_canonical().is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_written() {
        for text in ["tcp://node01:29501", "tcp://10.0.0.1:1", "tcp://[fd00::1]:65535", "file:///shared/a b"]
        {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        let parsed: Address = "tcp://[::1]:80".parse().unwrap();
        assert_eq!(parsed, Address::Tcp { host: "::1".to_owned(), port: 80 });
    }

    #[test]
    fn what_is_no_address_is_refused_with_the_form() {
        for (text, why) in [
            ("node01:29501", "neither tcp:// nor file://"),
            ("tcp://node01", "has no port"),
            ("tcp://node01:", "no number"),
            ("tcp://node01:70000", "no number"),
            ("tcp://node01:0", "port 0"),
            ("tcp://:80", "no name of a host"),
            ("tcp://a b:80", "no name of a host"),
            ("tcp://fd00::1:80", "without brackets"),
            ("tcp://[fd00::1:80", "does not close"),
            ("file://shared/x", "whole path"),
            ("file:///shared/", "whole path"),
            ("", "neither"),
        ] {
            let error = text.parse::<Address>().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Address);
            let message = error.to_string();
            assert!(message.contains(why) && message.contains("write tcp://HOST:PORT"), "{text}: {message}");
        }
    }

    #[test]
    fn private_networks_and_this_host_are_told_from_public_ones() {
        for private in
            ["127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.0.9", "::1", "fd00::1", "fe80::1"]
        {
            assert!(is_private(private.parse().unwrap()), "{private}");
        }
        assert!(is_private("::ffff:10.0.0.1".parse().unwrap()));
        for public in ["8.8.8.8", "172.32.0.1", "100.64.0.1", "2001:4860::1", "::ffff:8.8.8.8", "0.0.0.0"] {
            assert!(!is_private(public.parse().unwrap()), "{public}");
        }
        assert!(is_loopback_name("localhost") && is_loopback_name("127.0.1.1") && is_loopback_name("::1"));
        assert!(!is_loopback_name("node01") && !is_loopback_name("10.0.0.1"));
    }
}
