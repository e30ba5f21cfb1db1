//! The keeper's state as bytes: how it is started, also by itself when a new binary takes its place.
//!
//! `outpost serve` writes one with an empty table, a worker whose keeper died likewise, and a keeper that is replaced
//! writes the one it has. A keeper begins with reading one; there is no other way to start it.

use crate::bytes::{Reader, Writer};
use crate::message::{Standing, get_standing, put_entry};
use std::ffi::CString;

const MAGIC: u32 = u32::from_le_bytes(*b"OPKP");

/// The layout below. A reader refuses any other, before it takes anything over.
const SCHEMA: u32 = 1;

/// The most bytes a state may have.
pub const STATE_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// A worker that runs already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Running {
    pub pid: i32,
    pub pidfd: i32,
    pub link: i32,
    pub served: bool,
}

/// An entry of the table with the numbers of its descriptors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredEntry {
    pub slot: u64,
    pub pid: i32,
    pub standing: Standing,
    /// -1 when there is none.
    pub pidfd: i32,
    pub held: Vec<(u8, i32)>,
    /// Where a child that is starting reports; -1 otherwise.
    pub report: i32,
}

/// All a keeper needs to begin. Descriptors are numbers that it inherits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// The binary that workers are started from.
    pub binary: i32,
    /// The worker's command line. Without one there is no worker to start: the keeper ends with the one it has, and takes
    /// every process along.
    pub arguments: Vec<CString>,
    pub worker: Option<Running>,
    /// Put in place of another keeper, whose worker waits to hear of it.
    pub replaced: bool,
    pub entries: Vec<StoredEntry>,
}

impl State {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer::default();
        out.u32(MAGIC);
        out.u32(SCHEMA);
        out.i32(self.binary);
        out.flag(self.replaced);
        out.strings(&self.arguments);
        out.flag(self.worker.is_some());
        if let Some(worker) = &self.worker {
            [worker.pid, worker.pidfd, worker.link].into_iter().for_each(|number| out.i32(number));
            out.flag(worker.served);
        }
        out.count(self.entries.len());
        for entry in &self.entries {
            put_entry(&mut out, entry.slot, entry.pid, &entry.standing);
            out.i32(entry.pidfd);
            out.i32(entry.report);
            out.u8(u8::try_from(entry.held.len()).unwrap_or(u8::MAX));
            for (role, fd) in &entry.held {
                out.u8(*role);
                out.i32(*fd);
            }
        }
        out.bytes
    }

    /// `None` for bytes that are no state, or one of another layout.
    pub fn decode(bytes: &[u8]) -> Option<State> {
        let mut from = Reader(bytes);
        if from.u32()? != MAGIC || from.u32()? != SCHEMA {
            return None;
        }
        let (binary, replaced) = (from.i32()?, from.flag()?);
        let arguments = from.strings()?.into_iter().map(CString::from).collect();
        let worker = match from.flag()? {
            false => None,
            true => {
                let (pid, pidfd, link) = (from.i32()?, from.i32()?, from.i32()?);
                Some(Running { pid, pidfd, link, served: from.flag()? })
            }
        };
        let entries = (0..from.u32()?).map(|_| stored_entry(&mut from)).collect::<Option<_>>()?;
        Some(State { binary, arguments, worker, replaced, entries })
    }
}

fn stored_entry(from: &mut Reader<'_>) -> Option<StoredEntry> {
    let (slot, pid, standing) = (from.u64()?, from.i32()?, get_standing(from)?);
    let (pidfd, report) = (from.i32()?, from.i32()?);
    let held = (0..from.u8()?).map(|_| Some((from.u8()?, from.i32()?))).collect::<Option<Vec<_>>>()?;
    Some(StoredEntry { slot, pid, standing, pidfd, held, report })
}

#[cfg(test)]
#[allow(clippy::indexing_slicing)]
mod tests {
    use super::*;
    use outpost_sys::pidfd::Exit;

    fn state() -> State {
        State {
            binary: 9,
            arguments: vec![c"outpost".into(), c"worker".into()],
            worker: Some(Running { pid: 1, pidfd: 2, link: 3, served: true }),
            replaced: true,
            entries: vec![
                StoredEntry {
                    slot: 0,
                    pid: 0,
                    standing: Standing::Running,
                    pidfd: -1,
                    held: vec![(1, 7)],
                    report: -1,
                },
                StoredEntry {
                    slot: 99,
                    pid: 8,
                    standing: Standing::Ended(Exit::UNKNOWN),
                    pidfd: 4,
                    held: vec![(0, 5), (9, 6)],
                    report: 8,
                },
            ],
        }
    }

    #[test]
    fn a_state_reads_back_as_written() {
        assert_eq!(State::decode(&state().encode()), Some(state()));
    }

    #[test]
    fn a_state_cut_anywhere_or_of_another_layout_is_refused() {
        let bytes = state().encode();
        for len in 0..bytes.len() {
            assert_eq!(State::decode(&bytes[..len]), None, "{len} bytes");
        }
        let mut newer = bytes;
        newer[4] += 1;
        assert_eq!(State::decode(&newer), None);
    }
}
