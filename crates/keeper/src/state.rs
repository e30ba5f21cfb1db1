//! The serialized state that a keeper process starts from.
//!
//! `outpost serve` writes one with an empty table, and so does a worker whose keeper died. A keeper that is replaced
//! writes its own. There is no other way to start a keeper process.

use crate::bytes::{Reader, Writer};
use crate::codec::{get_state, put_state};
use crate::message::ProcessState;
use std::ffi::CString;

const MAGIC: u32 = u32::from_le_bytes(*b"OPKP");

/// The version of the layout below. A reader refuses any other.
const SCHEMA: u32 = 2;

/// Maximum number of bytes a state may have.
pub const STATE_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// A worker that runs already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Running {
    pub pid: i32,
    pub pidfd: i32,
    pub link: i32,
    pub served: bool,
}

/// An entry of the table, with its descriptors as numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SerializedEntry {
    pub slot: u64,
    pub pid: i32,
    pub state: ProcessState,
    /// -1 when there is none.
    pub pidfd: i32,
    pub held: Vec<(u8, i32)>,
    /// The status pipe of a child that is starting; -1 otherwise.
    pub exec_status: i32,
}

/// The state of a keeper. Descriptors are numbers that the process inherits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// The binary that workers are started from.
    pub binary: i32,
    /// The worker's command line. If it is empty, the keeper starts no worker: it kills every process and exits when
    /// its worker ends.
    pub arguments: Vec<CString>,
    pub worker: Option<Running>,
    /// This keeper replaces another one, whose worker waits for [`Event::Replaced`](crate::Event::Replaced).
    pub replaced: bool,
    pub entries: Vec<SerializedEntry>,
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
            out.u64(entry.slot);
            out.i32(entry.pid);
            put_state(&mut out, &entry.state);
            out.i32(entry.pidfd);
            out.i32(entry.exec_status);
            out.u8(u8::try_from(entry.held.len()).unwrap_or(u8::MAX));
            for (role, fd) in &entry.held {
                out.u8(*role);
                out.i32(*fd);
            }
        }
        out.bytes
    }

    /// `None` for bytes that are no state, or have another layout.
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
        let entries = (0..from.u32()?).map(|_| get_entry(&mut from)).collect::<Option<_>>()?;
        Some(State { binary, arguments, worker, replaced, entries })
    }
}

fn get_entry(from: &mut Reader<'_>) -> Option<SerializedEntry> {
    let (slot, pid, state) = (from.u64()?, from.i32()?, get_state(from)?);
    let (pidfd, exec_status) = (from.i32()?, from.i32()?);
    let held = (0..from.u8()?).map(|_| Some((from.u8()?, from.i32()?))).collect::<Option<Vec<_>>>()?;
    Some(SerializedEntry { slot, pid, state, pidfd, held, exec_status })
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
                SerializedEntry {
                    slot: 0,
                    pid: 0,
                    state: ProcessState::Running,
                    pidfd: -1,
                    held: vec![(1, 7)],
                    exec_status: -1,
                },
                SerializedEntry {
                    slot: 99,
                    pid: 8,
                    state: ProcessState::Ended(Exit::UNKNOWN),
                    pidfd: 4,
                    held: vec![(0, 5), (9, 6)],
                    exec_status: 8,
                },
            ],
        }
    }

    #[test]
    fn a_state_decodes_to_itself() {
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
