//! The index record: 32 bytes, little-endian, with a checksum over all that follows it.
//!
//! ```text
//! 0 crc32 u32 | 4 kind u8 | 5 zero u8 | 6 time_ms u48 | 12 amount u32 | 16 seq u64 | 24 place u64
//! ```

use crate::FRAME_BYTES;
use outpost_sys::pidfd::{Exit, How};

pub(crate) const RECORD_BYTES: usize = 32;

/// Which of a child's outputs. What a terminal shows is `Stdout`.
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

/// What a record says. Sequence numbers never fall from record to record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    /// The process was started; always the first record.
    Started { pid: u32, start_ticks: u64 },
    /// `len` bytes of a stream from `offset` on; their first frame has the record's number.
    Run { stream: Stream, offset: u64, len: u32 },
    /// No more stdin will be accepted than these many bytes.
    StdinClosed { at: u64 },
    /// So many bytes of a stream have been recorded. Written before the records that said so are given back.
    StreamEnd { stream: Stream, offset: u64 },
    /// The bytes of a stream before `offset`, and the numbers before the record's, were lost with a power failure as
    /// far as no record before this one covers them.
    Lost { stream: Stream, offset: u64 },
    /// What the process used; stands directly before `Exit`.
    Usage { user_ms: u32, system_ms: u32, rss_max_kb: u32 },
    /// How it ended; always the last record, with a number of its own.
    Exit { how: How },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) seq: u64,
    pub(crate) time_ms: u64,
    pub(crate) entry: Entry,
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
    pub(crate) fn numbers(&self) -> u64 {
        match self.entry {
            Entry::Run { len, .. } => u64::from(len).div_ceil(FRAME_BYTES),
            Entry::Exit { .. } => 1,
            Entry::Started { .. }
            | Entry::StdinClosed { .. }
            | Entry::StreamEnd { .. }
            | Entry::Lost { .. }
            | Entry::Usage { .. } => 0,
        }
    }

    pub(crate) fn encode(&self) -> [u8; RECORD_BYTES] {
        let (kind, amount, place) = match self.entry {
            Entry::Started { pid, start_ticks } => (STARTED, pid, start_ticks),
            Entry::Run { stream: Stream::Stdout, offset, len } => (STDOUT, len, offset),
            Entry::Run { stream: Stream::Stderr, offset, len } => (STDERR, len, offset),
            Entry::StdinClosed { at } => (STDIN_CLOSED, 0, at),
            Entry::StreamEnd { stream: Stream::Stdout, offset } => (STDOUT_END, 0, offset),
            Entry::StreamEnd { stream: Stream::Stderr, offset } => (STDERR_END, 0, offset),
            Entry::Lost { stream: Stream::Stdout, offset } => (STDOUT_LOST, 0, offset),
            Entry::Lost { stream: Stream::Stderr, offset } => (STDERR_LOST, 0, offset),
            Entry::Usage { user_ms, system_ms, rss_max_kb } => {
                (USAGE, rss_max_kb, u64::from(user_ms) << 32 | u64::from(system_ms))
            }
            Entry::Exit { how: How::Code(code) } => (EXIT_CODE, code.cast_unsigned(), 0),
            Entry::Exit { how: How::Signal(signal) } => (EXIT_SIGNAL, signal.cast_unsigned(), 0),
            Entry::Exit { how: How::Unknown } => (EXIT_UNKNOWN, 0, 0),
        };
        let mut bytes = [0; RECORD_BYTES];
        bytes[4] = kind;
        bytes[6..12].copy_from_slice(&self.time_ms.to_le_bytes()[..6]);
        bytes[12..16].copy_from_slice(&amount.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.seq.to_le_bytes());
        bytes[24..32].copy_from_slice(&place.to_le_bytes());
        let crc = crc32fast::hash(&bytes[4..]);
        bytes[..4].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// `None` for anything that `encode` did not make.
    pub(crate) fn decode(bytes: &[u8; RECORD_BYTES]) -> Option<Record> {
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        if word(0) != crc32fast::hash(&bytes[4..]) || bytes[5] != 0 {
            return None;
        }
        let (amount, place) = (word(12), long(24));
        let entry = match bytes[4] {
            STARTED => Entry::Started { pid: amount, start_ticks: place },
            STDOUT => Entry::Run { stream: Stream::Stdout, offset: place, len: amount },
            STDERR => Entry::Run { stream: Stream::Stderr, offset: place, len: amount },
            STDIN_CLOSED => Entry::StdinClosed { at: place },
            STDOUT_END => Entry::StreamEnd { stream: Stream::Stdout, offset: place },
            STDERR_END => Entry::StreamEnd { stream: Stream::Stderr, offset: place },
            STDOUT_LOST => Entry::Lost { stream: Stream::Stdout, offset: place },
            STDERR_LOST => Entry::Lost { stream: Stream::Stderr, offset: place },
            USAGE => {
                Entry::Usage { user_ms: (place >> 32) as u32, system_ms: place as u32, rss_max_kb: amount }
            }
            EXIT_CODE => Entry::Exit { how: How::Code(amount.cast_signed()) },
            EXIT_SIGNAL => Entry::Exit { how: How::Signal(amount.cast_signed()) },
            EXIT_UNKNOWN => Entry::Exit { how: How::Unknown },
            _ => return None,
        };
        Some(Record { seq: long(16), time_ms: long(4) >> 16, entry })
    }
}

/// The two records that end a journal.
pub(crate) fn ending(seq: u64, time_ms: u64, exit: &Exit) -> [Record; 2] {
    let Exit { how, user_ms, system_ms, rss_max_kb } = *exit;
    [Entry::Usage { user_ms, system_ms, rss_max_kb }, Entry::Exit { how }].map(|entry| Record {
        seq,
        time_ms,
        entry,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_entry_reads_back_as_written() {
        let entries = [
            Entry::Started { pid: 7, start_ticks: u64::MAX },
            Entry::Run { stream: Stream::Stdout, offset: 1 << 40, len: u32::MAX },
            Entry::Run { stream: Stream::Stderr, offset: 0, len: 1 },
            Entry::StdinClosed { at: 9 },
            Entry::StreamEnd { stream: Stream::Stdout, offset: 3 },
            Entry::StreamEnd { stream: Stream::Stderr, offset: 1 << 60 },
            Entry::Lost { stream: Stream::Stdout, offset: 0 },
            Entry::Lost { stream: Stream::Stderr, offset: 1 << 60 },
            Entry::Usage { user_ms: 1, system_ms: u32::MAX, rss_max_kb: 3 },
            Entry::Exit { how: How::Code(-1) },
            Entry::Exit { how: How::Signal(9) },
            Entry::Exit { how: How::Unknown },
        ];
        for entry in entries {
            let record = Record { seq: 1 << 50, time_ms: (1 << 48) - 1, entry };
            assert_eq!(Record::decode(&record.encode()), Some(record));
        }
    }

    #[test]
    fn a_single_changed_bit_is_noticed() {
        let record =
            Record { seq: 5, time_ms: 6, entry: Entry::Run { stream: Stream::Stdout, offset: 7, len: 8 } };
        for bit in 0..RECORD_BYTES * 8 {
            let mut bytes = record.encode();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Record::decode(&bytes), None, "bit {bit}");
        }
        assert_eq!(Record::decode(&[0; RECORD_BYTES]), None, "a hole in the file is no record");
    }
}
