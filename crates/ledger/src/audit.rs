//! The audit chain: a tamper-evident log, one JSON line per record.
//!
//! ```text
//! {"seq":7,"time":"2026-11-16T07:05:47.123456Z","boot_ns":93784…,"event":"decided","data":{…},"prev":"…","hash":"…"}
//! ```
//!
//! The fields have this order. `hash` is the SHA-256 of the line's bytes before `,"hash":`. `prev` is the hash
//! of the previous record; the first record has zeros. `seq` counts from 1 without gaps. So each record authenticates
//! itself and all records before it, and [`verify`] detects every changed byte.
//!
//! The newest records are in `audit.jsonl`. A full file ends with a `rotated` record and is renamed by its
//! first `seq`, such as `audit-00000000000000000001.jsonl`. The chain continues in a new `audit.jsonl`. Each
//! start of the daemon appends an `opened` record. It states the size of a torn record that it overwrote.
//!
//! A chain alone cannot prove that it was not truncated or rewritten as a whole. Therefore
//! [`syslog::send_head`] sends its [`Head`] to the system log, and `verify` checks that the chain contains a
//! given head.

mod error;
mod files;
mod read;
mod record;
pub mod syslog;
mod tail;
mod verify;
mod writer;

pub use error::{Error, Result};
pub use read::{Filter, Reader, Record, contains, read};
pub use verify::{Report, verify};
pub use writer::Writer;

use std::fmt;
use std::str::FromStr;

/// Maximum size of a record. A request of the maximum size fits, even if every byte is escaped.
pub const RECORD_BYTES_MAX: usize = 16 << 20;

/// What a record reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    Received,
    Refused,
    Shown,
    Decided,
    Started,
    Ended,
    Withdrawn,
    /// A key of the host, an approver or a terminal was created, changed or revoked.
    Key,
    /// Earlier records did not take effect: the daemon exited or failed before the database commit.
    Voided,
    /// Records were missing when the chain was opened, without a reboot in between.
    Shortened,
}

impl Event {
    fn name(self) -> &'static str {
        match self {
            Event::Received => "received",
            Event::Refused => "refused",
            Event::Shown => "shown",
            Event::Decided => "decided",
            Event::Started => "started",
            Event::Ended => "ended",
            Event::Withdrawn => "withdrawn",
            Event::Key => "key",
            Event::Voided => "voided",
            Event::Shortened => SHORTENED,
        }
    }
}

/// Records of the writer itself.
const OPENED: &str = "opened";
const ROTATED: &str = "rotated";

/// [`verify`] fails on a chain with this record.
const SHORTENED: &str = "shortened";

/// The number and hash of the newest record. A stored head detects a later change or truncation of the chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    pub seq: u64,
    pub hash: [u8; 32],
}

impl Head {
    /// The head of an empty chain.
    pub const NONE: Head = Head { seq: 0, hash: [0; 32] };
}

impl fmt::Display for Head {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seq={} sha256={}", self.seq, crate::hex(&self.hash))
    }
}

impl FromStr for Head {
    type Err = String;

    /// Parses the output of `Display`, as syslog stores it.
    fn from_str(text: &str) -> std::result::Result<Head, String> {
        let parts = text.trim().strip_prefix("seq=").and_then(|rest| rest.split_once(" sha256="));
        let head = parts.and_then(|(seq, hash)| {
            Some(Head { seq: seq.parse().ok()?, hash: record::from_hex(hash.as_bytes())? })
        });
        head.ok_or_else(|| "invalid audit head: expected the form seq=7 sha256= with 64 hex digits".into())
    }
}

#[cfg(test)]
mod tests;
