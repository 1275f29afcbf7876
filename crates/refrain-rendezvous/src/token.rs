//! The secret that ranks of one job share.

use std::fmt;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::error::{Error, ErrorKind, Result};

/// The environment variable that the command reads the secret from.
pub const TOKEN_VARIABLE: &str = "REFRAIN_RENDEZVOUS_TOKEN";

/// A secret that all ranks of a job know. Each side of a connection proves that it knows it, and the secret itself is never
/// sent. It says who may join; it does not encrypt what ranks send each other.
#[derive(Clone)]
pub struct Token(Vec<u8>);

impl Token {
    /// A secret of at least 16 bytes, such as `openssl rand -hex 32` prints.
    ///
    /// # Errors
    /// [`ErrorKind::Token`] if it is shorter.
    pub fn new(secret: &str) -> Result<Self> {
        let secret = secret.trim();
        if secret.len() < 16 {
            let message = format!(
                "the secret in {TOKEN_VARIABLE} has {} characters and needs at least 16: make one with `openssl rand -hex 32` \
                 and give the same to every rank",
                secret.len()
            );
            return Err(Error::new(ErrorKind::Token, message));
        }
        Ok(Self(secret.as_bytes().to_vec()))
    }

    /// The secret in [`TOKEN_VARIABLE`], if it is set.
    pub fn from_environment() -> Result<Option<Self>> {
        match std::env::var_os(TOKEN_VARIABLE) {
            None => Ok(None),
            Some(secret) => Self::new(&secret.to_string_lossy()).map(Some),
        }
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

/// One conversation's random numbers, one of each side: what is signed in one can't be used in another.
#[derive(Clone)]
pub struct Conversation {
    pub member: [u8; 32],
    pub root: [u8; 32],
}

/// Which message of the conversation is signed, so that none can stand for another.
#[derive(Clone, Copy)]
pub enum Label {
    Join = 1,
    Answer = 2,
    Verdict = 3,
}

impl Conversation {
    fn mac(&self, token: &Token, label: Label, body: &[u8]) -> Option<Hmac<Sha256>> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&token.0).ok()?;
        for part in [b"refrain rendezvous 1 ".as_slice(), &[label as u8], &self.member, &self.root, body] {
            mac.update(part);
        }
        Some(mac)
    }

    /// The proof that the sender of a message knows the secret; zeros without one.
    pub fn sign(&self, token: Option<&Token>, label: Label, body: &[u8]) -> [u8; 32] {
        let mac = token.and_then(|token| self.mac(token, label, body));
        mac.map_or([0; 32], |mac| mac.finalize().into_bytes().into())
    }

    /// Whether the sender of a message knows the secret; without a secret anybody may send.
    pub fn verify(&self, token: Option<&Token>, label: Label, body: &[u8], proof: &[u8; 32]) -> bool {
        let Some(token) = token else { return true };
        self.mac(token, label, body).is_some_and(|mac| mac.verify_slice(proof).is_ok())
    }
}

/// Numbers that nobody can guess.
pub fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes)
        .map_err(|e| Error::new(ErrorKind::System, format!("the system gives no random numbers: {e}")))?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conversation() -> Conversation {
        Conversation { member: [1; 32], root: [2; 32] }
    }

    #[test]
    fn a_proof_holds_for_one_secret_message_and_conversation() {
        let (token, other) =
            (Token::new("0123456789abcdef").unwrap(), Token::new("0123456789abcdeg").unwrap());
        let proof = conversation().sign(Some(&token), Label::Join, b"body");
        assert!(conversation().verify(Some(&token), Label::Join, b"body", &proof));
        assert!(!conversation().verify(Some(&other), Label::Join, b"body", &proof));
        assert!(!conversation().verify(Some(&token), Label::Answer, b"body", &proof));
        assert!(!conversation().verify(Some(&token), Label::Join, b"bodY", &proof));
        let later = Conversation { root: [3; 32], ..conversation() };
        assert!(!later.verify(Some(&token), Label::Join, b"body", &proof));
        assert!(!conversation().verify(Some(&token), Label::Join, b"body", &[0; 32]));
        assert!(conversation().verify(None, Label::Join, b"body", &[0; 32]));
    }

    /// The proof by Python's hmac: `hmac.new(b"0123456789abcdef", b"refrain rendezvous 1 \x01" + b"\x01" * 32 + b"\x02" * 32
    /// + b"body", "sha256").hexdigest()`.
    #[test]
    fn a_proof_is_hmac_sha256() {
        let token = Token::new("0123456789abcdef").unwrap();
        let proof = conversation().sign(Some(&token), Label::Join, b"body");
        let hex: String = proof.iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(hex, "bee0ea6c313bca57322d72f03b5317e646e98dc552b28b368c3d6d0bd4336630");
    }

    #[test]
    fn a_secret_is_long_and_not_printed() {
        let error = Token::new(" short ").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Token);
        assert!(error.to_string().contains("5 characters") && error.to_string().contains("openssl"));
        assert_eq!(format!("{:?}", Token::new("0123456789abcdef").unwrap()), "Token(..)");
        assert_ne!(random::<32>().unwrap(), random::<32>().unwrap());
    }
}
