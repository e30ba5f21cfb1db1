//! The audit chain: what happened, one line of JSON each, such that no line can be changed without it showing.
//!
//! ```text
//! {"seq":7,"time":"2026-11-16T07:05:47.123456Z","boot_ns":93784…,"event":"decided","data":{…},"prev":"…","hash":"…"}
//! ```
//!
//! The fields are in this order. `hash` is the SHA-256 of the line's bytes before `,"hash":`, `prev` that of the record
//! before, and zeros in the first one. `seq` counts from 1 without gaps. So each record vouches for itself and for all
//! before it, and [`verify`] finds any byte that was changed.
//!
//! The end is in `audit.jsonl`. A file that has grown large ends with a record `rotated` and is called after the first
//! record in it, `audit-00000000000000000001.jsonl`; the chain goes on in the next one. Every start of the daemon is a
//! record `opened`. It tells how many bytes of an unfinished record it found and has taken the place of.
//!
//! What a chain cannot show by itself: that its end was cut off, or that somebody wrote all of it anew. For that its
//! [`Head`] goes elsewhere too, by [`syslog::tell`], and `verify` checks that what was told is in the chain.

mod error;
mod examine;
mod files;
mod read;
mod record;
pub mod syslog;
mod tail;
mod verify;
mod writer;

pub use error::{Error, Result};
pub use examine::{Findings, Trusted, examine};
pub use read::{Filter, Reader, Record, has, read};
pub use verify::{Report, verify};
pub use writer::Writer;

use std::fmt;
use std::str::FromStr;

/// A record has at most this many bytes: a request of the largest size, each byte of it escaped, fits.
pub const RECORD_BYTES_MAX: usize = 16 << 20;

/// What happened to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    Received,
    Refused,
    Shown,
    Decided,
    Started,
    Ended,
    Withdrawn,
    /// A key of the host, of an approver or of a terminal was made, changed or revoked.
    Key,
    /// Records before this one did not take effect: whoever wrote them ended, or failed, before both books agreed.
    Voided,
    /// Records that were in the chain were not there any more when it was opened, and the machine had not ended meanwhile.
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

/// What the writer records of itself.
const OPENED: &str = "opened";
const ROTATED: &str = "rotated";

/// A chain with such a record does not hold.
const SHORTENED: &str = "shortened";

/// The newest record of a chain: who knows it can tell whether anything up to it was changed or cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    pub seq: u64,
    pub hash: [u8; 32],
}

impl Head {
    /// Before the first record.
    pub const NONE: Head = Head { seq: 0, hash: [0; 32] };
}

impl fmt::Display for Head {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seq={} sha256={}", self.seq, crate::hex(&self.hash))
    }
}

impl FromStr for Head {
    type Err = String;

    /// Reads what [`Head`] prints, and syslog keeps.
    fn from_str(text: &str) -> std::result::Result<Head, String> {
        let parts = text.trim().strip_prefix("seq=").and_then(|rest| rest.split_once(" sha256="));
        let head = parts.and_then(|(seq, hash)| {
            Some(Head { seq: seq.parse().ok()?, hash: record::from_hex(hash.as_bytes())? })
        });
        head.ok_or_else(|| {
            "cannot read the head of an audit chain: it looks like seq=7 sha256= and 64 digits".into()
        })
    }
}

#[cfg(test)]
mod tests;
