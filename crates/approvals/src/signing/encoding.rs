//! The encoding of signed messages: a magic, a version, then SSH strings and integers (RFC 4251) in a fixed
//! order.

use super::DecodeError;
use outpost_ledger::audit::Head;
use ssh_encoding::{Decode, Encode, Reader};

/// The version of every layout here.
const VERSION: u32 = 1;

/// Appends fields.
pub(super) struct Encoder {
    bytes: Vec<u8>,
}

impl Encoder {
    pub(super) fn new(magic: &str) -> Encoder {
        let mut bytes = magic.as_bytes().to_vec();
        bytes.extend_from_slice(&VERSION.to_be_bytes());
        Encoder { bytes }
    }

    pub(super) fn string(mut self, value: impl AsRef<[u8]>) -> Encoder {
        // Writing to a `Vec` cannot fail, and no string here reaches the 4 GiB limit of its length field.
        let _ = value.as_ref().encode(&mut self.bytes);
        self
    }

    pub(super) fn number(mut self, value: u64) -> Encoder {
        self.bytes.extend_from_slice(&value.to_be_bytes());
        self
    }

    pub(super) fn head(self, head: &Head) -> Encoder {
        self.number(head.seq).string(head.hash)
    }

    pub(super) fn strings(self, values: &[String]) -> Encoder {
        let fields = self.number(values.len() as u64);
        values.iter().fold(fields, |fields, value| fields.string(value))
    }

    pub(super) fn bytes(self) -> Vec<u8> {
        self.bytes
    }
}

/// Reads fields back. An error names the field.
pub(super) struct Decoder<'a> {
    rest: &'a [u8],
}

impl<'a> Decoder<'a> {
    pub(super) fn new(bytes: &'a [u8], magic: &str) -> Result<Decoder<'a>, DecodeError> {
        let rest = bytes.strip_prefix(magic.as_bytes());
        let rest = rest.ok_or_else(|| DecodeError::Magic(magic.to_owned()))?;
        let mut parse = Decoder { rest };
        match u32::decode(&mut parse.rest) {
            Ok(VERSION) => Ok(parse),
            Ok(version) => Err(DecodeError::Version(version)),
            Err(_) => Err(DecodeError::NoVersion),
        }
    }

    pub(super) fn bytes(&mut self, what: &'static str) -> Result<Vec<u8>, DecodeError> {
        Vec::decode(&mut self.rest).map_err(|_| DecodeError::Field(what))
    }

    pub(super) fn text(&mut self, what: &'static str) -> Result<String, DecodeError> {
        String::from_utf8(self.bytes(what)?).map_err(|_| DecodeError::NotUtf8(what))
    }

    pub(super) fn hash(&mut self, what: &'static str) -> Result<[u8; 32], DecodeError> {
        self.bytes(what)?.try_into().map_err(|_| DecodeError::HashLength(what))
    }

    pub(super) fn number(&mut self, what: &'static str) -> Result<u64, DecodeError> {
        u64::decode(&mut self.rest).map_err(|_| DecodeError::Field(what))
    }

    pub(super) fn head(&mut self) -> Result<Head, DecodeError> {
        Ok(Head { seq: self.number("audit head")?, hash: self.hash("audit head")? })
    }

    pub(super) fn strings(&mut self, what: &'static str, most: u64) -> Result<Vec<String>, DecodeError> {
        let count = self.number(what)?;
        if count > most {
            return Err(DecodeError::TooMany { what, most });
        }
        (0..count).map(|_| self.text(what)).collect()
    }

    pub(super) fn end(self) -> Result<(), DecodeError> {
        match self.rest.is_finished() {
            true => Ok(()),
            false => Err(DecodeError::Trailing),
        }
    }
}
