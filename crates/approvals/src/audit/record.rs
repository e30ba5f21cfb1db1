//! One record: how it becomes a line, and what a line must be to be one.

use super::{Head, RECORD_BYTES_MAX};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};
use std::io::Write;

const HASH_KEY: &[u8] = b",\"hash\":\"";
const HASH_DIGITS: usize = 64;
const END: &[u8] = b"\"}";

/// Why there is no line.
pub(super) enum NoLine {
    TooLong(usize),
    Unserializable(String),
}

/// Makes the line of the record after `last`, with its newline, and says what the head is with it.
pub(super) fn encode(
    line: &mut Vec<u8>,
    last: &Head,
    event: &str,
    data: &impl Serialize,
) -> Result<Head, NoLine> {
    let (seq, boot_ns) = (last.seq + 1, outpost_sys::clock::boot_ns());
    let time = Timestamp::now();
    line.clear();
    // Memory takes everything.
    let _ = write!(
        line,
        "{{\"seq\":{seq},\"time\":\"{time:.6}\",\"boot_ns\":{boot_ns},\"event\":\"{event}\",\"data\":"
    );
    serde_json::to_writer(&mut *line, data).map_err(|error| NoLine::Unserializable(error.to_string()))?;
    line.extend_from_slice(b",\"prev\":\"");
    push_hex(line, &last.hash);
    line.push(b'"');
    let hash = Sha256::digest(&*line).into();
    line.extend_from_slice(HASH_KEY);
    push_hex(line, &hash);
    line.extend_from_slice(END);
    line.push(b'\n');
    match line.len() {
        bytes if bytes > RECORD_BYTES_MAX => Err(NoLine::TooLong(bytes)),
        _ => Ok(Head { seq, hash }),
    }
}

/// A record as it stands in its line.
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
    /// The record that this one follows, as it says.
    pub(super) fn prev(&self) -> Option<[u8; 32]> {
        from_hex(self.prev.as_bytes())
    }
}

/// Reads a line without its newline. Its own hash must be right; whether it belongs where it stands is for others.
pub(super) fn parse(line: &[u8]) -> Result<(Parsed<'_>, Head), String> {
    let body =
        line.strip_suffix(END).and_then(|line| line.split_at_checked(line.len().checked_sub(HASH_DIGITS)?));
    let (body, digits) = body.ok_or("it is too short for a record")?;
    let body = body.strip_suffix(HASH_KEY).ok_or("it does not end with a hash as records do")?;
    let hash: [u8; 32] = Sha256::digest(body).into();
    if from_hex(digits) != Some(hash) {
        return Err("its bytes are not those that its hash was made of".into());
    }
    let parsed: Parsed<'_> =
        serde_json::from_slice(line).map_err(|error| format!("it is no record: {error}"))?;
    // A field of that name within the data cannot be the last thing of the line, but nothing shall depend on that.
    if parsed.hash.as_bytes() != digits {
        return Err("its hash is not the last field".into());
    }
    let head = Head { seq: parsed.seq, hash };
    Ok((parsed, head))
}

/// Whether bytes without a newline can be what an interrupted write left: no more than a whole record.
pub(super) fn is_unfinished(bytes: &[u8]) -> bool {
    bytes.split_last().is_none_or(|(_, before)| parse(before).is_err())
}

fn push_hex(line: &mut Vec<u8>, bytes: &[u8; 32]) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digit = |value: u8| DIGITS.get(usize::from(value & 15)).copied().unwrap_or_default();
    line.extend(bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(*byte)]));
}

/// 64 digits, in lower case: there is one way only to write a hash.
pub(super) fn from_hex(digits: &[u8]) -> Option<[u8; 32]> {
    if digits.len() != HASH_DIGITS {
        return None;
    }
    let value = |digit: u8| match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    };
    let mut bytes = [0; 32];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        let &[high, low] = pair else { return None };
        *byte = value(high)? << 4 | value(low)?;
    }
    Some(bytes)
}
