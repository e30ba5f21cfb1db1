//! Encodes and parses one record.

use super::{Head, RECORD_BYTES_MAX};
use data_encoding::HEXLOWER;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};
use std::io::Write;

const HASH_KEY: &[u8] = b",\"hash\":\"";
const HASH_DIGITS: usize = 64;
const END: &[u8] = b"\"}";

/// Why a record cannot be encoded.
pub(super) enum EncodeError {
    TooLong(usize),
    Unserializable(String),
}

/// Encodes the record after `last` into `line`, with its newline. Returns the new head.
pub(super) fn encode(
    line: &mut Vec<u8>,
    last: &Head,
    event: &str,
    data: &impl Serialize,
) -> Result<Head, EncodeError> {
    let (seq, boot_ns) = (last.seq + 1, outpost_sys::clock::boot_ns());
    let time = Timestamp::now();
    line.clear();
    // Writing to a `Vec` cannot fail.
    let _ = write!(
        line,
        "{{\"seq\":{seq},\"time\":\"{time:.6}\",\"boot_ns\":{boot_ns},\"event\":\"{event}\",\"data\":"
    );
    serde_json::to_writer(&mut *line, data)
        .map_err(|error| EncodeError::Unserializable(error.to_string()))?;
    line.extend_from_slice(b",\"prev\":\"");
    push_hex(line, &last.hash);
    line.push(b'"');
    let hash = Sha256::digest(&*line).into();
    line.extend_from_slice(HASH_KEY);
    push_hex(line, &hash);
    line.extend_from_slice(END);
    line.push(b'\n');
    match line.len() {
        bytes if bytes > RECORD_BYTES_MAX => Err(EncodeError::TooLong(bytes)),
        _ => Ok(Head { seq, hash }),
    }
}

/// The fields of a line.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Parsed<'a> {
    pub(super) seq: u64,
    pub(super) time: &'a str,
    pub(super) boot_ns: u64,
    pub(super) event: &'a str,
    #[serde(borrow)]
    pub(super) data: &'a RawValue,
    prev: &'a str,
    hash: &'a str,
}

impl Parsed<'_> {
    /// The hash of the previous record.
    pub(super) fn prev(&self) -> Option<[u8; 32]> {
        from_hex(self.prev.as_bytes())
    }
}

/// Parses a line without its newline and checks its hash. The caller checks its position in the chain.
pub(super) fn parse(line: &[u8]) -> Result<(Parsed<'_>, Head), String> {
    let body =
        line.strip_suffix(END).and_then(|line| line.split_at_checked(line.len().checked_sub(HASH_DIGITS)?));
    let (body, digits) = body.ok_or("the line is too short for a record")?;
    let body = body.strip_suffix(HASH_KEY).ok_or("the hash field is missing")?;
    let hash: [u8; 32] = Sha256::digest(body).into();
    if from_hex(digits) != Some(hash) {
        return Err("hash mismatch: the record was modified".into());
    }
    let parsed: Parsed<'_> =
        serde_json::from_slice(line).map_err(|error| format!("malformed record: {error}"))?;
    // The text before the hash cannot contain another `hash` field at the end, but do not rely on that.
    if parsed.hash.as_bytes() != digits {
        return Err("the hash is not the last field".into());
    }
    let head = Head { seq: parsed.seq, hash };
    Ok((parsed, head))
}

/// Whether bytes without a newline can be a torn write: they do not contain a complete record.
pub(super) fn is_unfinished(bytes: &[u8]) -> bool {
    bytes.split_last().is_none_or(|(_, before)| parse(before).is_err())
}

fn push_hex(line: &mut Vec<u8>, hash: &[u8; 32]) {
    line.extend_from_slice(crate::hex(hash).as_bytes());
}

/// Parses 64 lower-case digits. Upper case is rejected, so a hash has one encoding only.
pub(super) fn from_hex(digits: &[u8]) -> Option<[u8; 32]> {
    HEXLOWER.decode(digits).ok()?.try_into().ok()
}
