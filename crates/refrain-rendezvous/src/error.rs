//! What can go wrong before the ranks of a job are together.

/// The result type of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// What kind of error it is. The message says the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The environment or the options do not say which rank this process is.
    World,
    /// The address of the rendezvous cannot be used.
    Address,
    /// The file of the rendezvous cannot be written or read.
    File,
    /// Rank 0 cannot listen on the address.
    Listen,
    /// Rank 0 was not reached in time.
    Unreachable,
    /// The secret is missing, too short, or not the one of rank 0.
    Token,
    /// Some ranks did not come in time.
    Missing,
    /// Two processes say that they are the same rank.
    Twice,
    /// The ranks differ in something that must be the same.
    Differs,
    /// The other side does not speak this version of the protocol, or an argument is too large for it.
    Protocol,
    /// The operating system refused a thread, a socket or random numbers.
    System,
}

impl ErrorKind {
    const ALL: [Self; 11] = [
        Self::World,
        Self::Address,
        Self::File,
        Self::Listen,
        Self::Unreachable,
        Self::Token,
        Self::Missing,
        Self::Twice,
        Self::Differs,
        Self::Protocol,
        Self::System,
    ];

    /// The number that stands for the kind in a message to another rank.
    pub(crate) fn number(self) -> u8 {
        self as u8
    }

    pub(crate) fn of_number(number: u8) -> Self {
        Self::ALL.get(usize::from(number)).copied().unwrap_or(Self::Protocol)
    }
}

/// Why the ranks of a job did not come together. The message says what is wrong, where, and what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    kind: ErrorKind,
    message: String,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    /// What kind of error it is.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_survives_the_way_to_another_rank() {
        for kind in ErrorKind::ALL {
            assert_eq!(ErrorKind::of_number(kind.number()), kind);
        }
        assert_eq!(ErrorKind::of_number(200), ErrorKind::Protocol);
    }
}
