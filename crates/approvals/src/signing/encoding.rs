//! The encoding of signed messages: a magic, a version, then SSH strings and integers (RFC 4251) in a fixed
//! order.

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
    pub(super) fn new(bytes: &'a [u8], magic: &str) -> Result<Decoder<'a>, String> {
        let rest = bytes.strip_prefix(magic.as_bytes()).ok_or(format!("does not begin with {magic}"))?;
        let mut parse = Decoder { rest };
        match u32::decode(&mut parse.rest) {
            Ok(VERSION) => Ok(parse),
            Ok(version) => Err(format!("has the unknown version {version}")),
            Err(_) => Err("has no version".into()),
        }
    }

    pub(super) fn bytes(&mut self, what: &str) -> Result<Vec<u8>, String> {
        Vec::decode(&mut self.rest).map_err(|_| format!("has no valid {what}"))
    }

    pub(super) fn text(&mut self, what: &str) -> Result<String, String> {
        String::from_utf8(self.bytes(what)?).map_err(|_| format!("has a {what} that is not UTF-8"))
    }

    pub(super) fn hash(&mut self, what: &str) -> Result<[u8; 32], String> {
        self.bytes(what)?.try_into().map_err(|_| format!("has a {what} of other than 32 bytes"))
    }

    pub(super) fn number(&mut self, what: &str) -> Result<u64, String> {
        u64::decode(&mut self.rest).map_err(|_| format!("has no valid {what}"))
    }

    pub(super) fn head(&mut self) -> Result<Head, String> {
        Ok(Head { seq: self.number("audit head")?, hash: self.hash("audit head")? })
    }

    pub(super) fn strings(&mut self, what: &str, most: u64) -> Result<Vec<String>, String> {
        let count = self.number(what)?;
        if count > most {
            return Err(format!("has more than {most} {what}"));
        }
        (0..count).map(|_| self.text(what)).collect()
    }

    pub(super) fn end(self) -> Result<(), String> {
        match self.rest.is_finished() {
            true => Ok(()),
            false => Err("has bytes after its last field".into()),
        }
    }
}
