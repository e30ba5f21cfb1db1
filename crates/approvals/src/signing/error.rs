//! Why a signed message cannot be decoded, or why its signature is not valid.

use thiserror::Error;

/// Why bytes are not the encoding of a message. Completes a sentence that names the message.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DecodeError {
    #[error("does not begin with {0}")]
    Magic(String),
    #[error("has no version")]
    NoVersion,
    #[error("has the unknown version {0}")]
    Version(u32),
    #[error("has no valid {0}")]
    Field(&'static str),
    #[error("has a {0} that is not UTF-8")]
    NotUtf8(&'static str),
    #[error("has a {0} of other than 32 bytes")]
    HashLength(&'static str),
    #[error("has more than {most} {what}")]
    TooMany { what: &'static str, most: u64 },
    #[error("has an unknown {0}")]
    Unknown(&'static str),
    #[error("has a {0} that is too large")]
    TooLarge(&'static str),
    #[error("has bytes after its last field")]
    Trailing,
}

/// Why a signed message is not valid.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SignedError {
    #[error("the {0} is not canonical base64")]
    Base64(&'static str),
    #[error("the statement {0}")]
    Statement(#[source] DecodeError),
    #[error("the key statement {0}")]
    KeyStatement(#[source] DecodeError),
    #[error("the signature is not an SSHSIG")]
    NotSshsig,
    #[error("the signature cannot be read")]
    Unreadable,
    #[error("the signature has the unknown version {0}")]
    Version(u32),
    #[error("the signature has unexpected bytes")]
    UnexpectedBytes,
    #[error("the signature is not for {0}")]
    Namespace(String),
    #[error("the signature is over an unknown hash")]
    UnknownHash,
    #[error("the signer's key cannot be used: {0}")]
    Key(#[source] ssh_key::Error),
    #[error("the signer's key is not in its canonical form")]
    KeyForm,
    #[error("the algorithms of signature and key differ")]
    Algorithm,
    #[error("the hardware key was not touched for this signature")]
    Untouched,
    #[error("the signature does not match what was signed")]
    Mismatch,
}

impl From<SignedError> for crate::Error {
    fn from(error: SignedError) -> crate::Error {
        crate::Error::Key(error.to_string())
    }
}
