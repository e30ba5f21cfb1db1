//! Index records: 32 bytes, little-endian, with a checksum over all bytes after it.
//!
//! ```text
//! 0 crc32 u32 | 4 kind u8 | 5 zero u8 | 6 time_ms u48 | 12 amount u32 | 16 seq u64 | 24 value u64
//! ```

use crate::FRAME_BYTES;
use outpost_sys::pidfd::{Exit, ExitCause};

pub(crate) const RECORD_BYTES: usize = 32;

/// An output stream of a child. The output of a terminal is `Stdout`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stream {
    Stdout,
    Stderr,
}

impl Stream {
    pub const ALL: [Stream; 2] = [Stream::Stdout, Stream::Stderr];

    pub(crate) fn index(self) -> usize {
        match self {
            Stream::Stdout => 0,
            Stream::Stderr => 1,
        }
    }
}

/// The content of a record. Sequence numbers never decrease from record to record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecordBody {
    /// The process was started. Always the first record.
    Started { pid: u32, start_ticks: u64 },
    /// `len` bytes of a stream from `offset` on. Their first frame has the record's sequence number.
    Run { stream: Stream, offset: u64, len: u32 },
    /// Stdin ends after this many bytes.
    StdinClosed { at: u64 },
    /// This many bytes of a stream have been recorded. Written before the records that imply it are punched
    /// out.
    StreamEnd { stream: Stream, offset: u64 },
    /// A power failure has lost the bytes of a stream before `offset` and the sequence numbers before the
    /// record's, unless an earlier record covers them.
    Lost { stream: Stream, offset: u64 },
    /// The resource usage. Directly before `Exit`.
    Usage { user_ms: u32, system_ms: u32, rss_max_kb: u32 },
    /// The exit. Always the last record, with a sequence number of its own.
    Exit { cause: ExitCause },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) seq: u64,
    pub(crate) time_ms: u64,
    pub(crate) body: RecordBody,
}

const STARTED: u8 = 1;
const STDOUT: u8 = 2;
const STDERR: u8 = 3;
const STDIN_CLOSED: u8 = 4;
const USAGE: u8 = 5;
const EXIT_CODE: u8 = 6;
const EXIT_SIGNAL: u8 = 7;
const EXIT_UNKNOWN: u8 = 8;
const STDOUT_END: u8 = 9;
const STDERR_END: u8 = 10;
const STDOUT_LOST: u8 = 11;
const STDERR_LOST: u8 = 12;

impl Record {
    /// How many sequence numbers the record takes.
    pub(crate) fn frame_count(&self) -> u64 {
        match self.body {
            RecordBody::Run { len, .. } => u64::from(len).div_ceil(FRAME_BYTES),
            RecordBody::Exit { .. } => 1,
            RecordBody::Started { .. }
            | RecordBody::StdinClosed { .. }
            | RecordBody::StreamEnd { .. }
            | RecordBody::Lost { .. }
            | RecordBody::Usage { .. } => 0,
        }
    }

    pub(crate) fn encode(&self) -> [u8; RECORD_BYTES] {
        let (kind, amount, value) = match self.body {
            RecordBody::Started { pid, start_ticks } => (STARTED, pid, start_ticks),
            RecordBody::Run { stream: Stream::Stdout, offset, len } => (STDOUT, len, offset),
            RecordBody::Run { stream: Stream::Stderr, offset, len } => (STDERR, len, offset),
            RecordBody::StdinClosed { at } => (STDIN_CLOSED, 0, at),
            RecordBody::StreamEnd { stream: Stream::Stdout, offset } => (STDOUT_END, 0, offset),
            RecordBody::StreamEnd { stream: Stream::Stderr, offset } => (STDERR_END, 0, offset),
            RecordBody::Lost { stream: Stream::Stdout, offset } => (STDOUT_LOST, 0, offset),
            RecordBody::Lost { stream: Stream::Stderr, offset } => (STDERR_LOST, 0, offset),
            RecordBody::Usage { user_ms, system_ms, rss_max_kb } => {
                (USAGE, rss_max_kb, u64::from(user_ms) << 32 | u64::from(system_ms))
            }
            RecordBody::Exit { cause: ExitCause::Code(code) } => (EXIT_CODE, code.cast_unsigned(), 0),
            RecordBody::Exit { cause: ExitCause::Signal(signal) } => (EXIT_SIGNAL, signal.cast_unsigned(), 0),
            RecordBody::Exit { cause: ExitCause::Unknown } => (EXIT_UNKNOWN, 0, 0),
        };
        let mut bytes = [0; RECORD_BYTES];
        bytes[4] = kind;
        bytes[6..12].copy_from_slice(&self.time_ms.to_le_bytes()[..6]);
        bytes[12..16].copy_from_slice(&amount.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.seq.to_le_bytes());
        bytes[24..32].copy_from_slice(&value.to_le_bytes());
        let crc = crc32fast::hash(&bytes[4..]);
        bytes[..4].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// `None` for bytes that `encode` did not produce.
    pub(crate) fn decode(bytes: &[u8; RECORD_BYTES]) -> Option<Record> {
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        if word(0) != crc32fast::hash(&bytes[4..]) || bytes[5] != 0 {
            return None;
        }
        let (amount, value) = (word(12), long(24));
        let body = match bytes[4] {
            STARTED => RecordBody::Started { pid: amount, start_ticks: value },
            STDOUT => RecordBody::Run { stream: Stream::Stdout, offset: value, len: amount },
            STDERR => RecordBody::Run { stream: Stream::Stderr, offset: value, len: amount },
            STDIN_CLOSED => RecordBody::StdinClosed { at: value },
            STDOUT_END => RecordBody::StreamEnd { stream: Stream::Stdout, offset: value },
            STDERR_END => RecordBody::StreamEnd { stream: Stream::Stderr, offset: value },
            STDOUT_LOST => RecordBody::Lost { stream: Stream::Stdout, offset: value },
            STDERR_LOST => RecordBody::Lost { stream: Stream::Stderr, offset: value },
            USAGE => RecordBody::Usage {
                user_ms: (value >> 32) as u32,
                system_ms: value as u32,
                rss_max_kb: amount,
            },
            EXIT_CODE => RecordBody::Exit { cause: ExitCause::Code(amount.cast_signed()) },
            EXIT_SIGNAL => RecordBody::Exit { cause: ExitCause::Signal(amount.cast_signed()) },
            EXIT_UNKNOWN => RecordBody::Exit { cause: ExitCause::Unknown },
            _ => return None,
        };
        Some(Record { seq: long(16), time_ms: long(4) >> 16, body })
    }
}

/// The two last records of a journal.
pub(crate) fn ending(seq: u64, time_ms: u64, exit: &Exit) -> [Record; 2] {
    let Exit { cause, user_ms, system_ms, rss_max_kb } = *exit;
    [RecordBody::Usage { user_ms, system_ms, rss_max_kb }, RecordBody::Exit { cause }].map(|body| Record {
        seq,
        time_ms,
        body,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_record_round_trips() {
        let entries = [
            RecordBody::Started { pid: 7, start_ticks: u64::MAX },
            RecordBody::Run { stream: Stream::Stdout, offset: 1 << 40, len: u32::MAX },
            RecordBody::Run { stream: Stream::Stderr, offset: 0, len: 1 },
            RecordBody::StdinClosed { at: 9 },
            RecordBody::StreamEnd { stream: Stream::Stdout, offset: 3 },
            RecordBody::StreamEnd { stream: Stream::Stderr, offset: 1 << 60 },
            RecordBody::Lost { stream: Stream::Stdout, offset: 0 },
            RecordBody::Lost { stream: Stream::Stderr, offset: 1 << 60 },
            RecordBody::Usage { user_ms: 1, system_ms: u32::MAX, rss_max_kb: 3 },
            RecordBody::Exit { cause: ExitCause::Code(-1) },
            RecordBody::Exit { cause: ExitCause::Signal(9) },
            RecordBody::Exit { cause: ExitCause::Unknown },
        ];
        for body in entries {
            let record = Record { seq: 1 << 50, time_ms: (1 << 48) - 1, body };
            assert_eq!(Record::decode(&record.encode()), Some(record));
        }
    }

    #[test]
    fn a_flipped_bit_is_detected() {
        let record = Record {
            seq: 5,
            time_ms: 6,
            body: RecordBody::Run { stream: Stream::Stdout, offset: 7, len: 8 },
        };
        for bit in 0..RECORD_BYTES * 8 {
            let mut bytes = record.encode();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Record::decode(&bytes), None, "bit {bit}");
        }
        assert_eq!(Record::decode(&[0; RECORD_BYTES]), None, "a hole in the file is not a record");
    }
}
