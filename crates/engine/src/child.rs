//! One process of the reactor: its descriptors, the writer of its journal, and the state of its end.

use crate::input::{Input, Target};
use crate::launch::Launch;
use crate::link::role;
use crate::process::{Process, Progress, Status};
use crate::spec::Supervision;
use outpost_journal::{Chore, Pumped, Stream, Writer};
use outpost_keeper::ProcessState;
use outpost_sys::Errno;
use outpost_sys::epoll::{Epoll, Interest};
use outpost_sys::pidfd::Exit;
use outpost_sys::pipe::{self, Moved, Pipe};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Maximum number of bytes moved from a terminal at once.
const AT_ONCE_BYTES: usize = 64 * 1024;

/// The size of a pipe, and that of an enlarged one.
pub(crate) const PIPE_BYTES: usize = 64 * 1024;
pub(crate) const LARGE_PIPE_BYTES: usize = 1024 * 1024;

/// The pipe of a stream is enlarged after this many large pieces in a row.
const ENLARGE_AFTER: u32 = 8;

/// Small pieces in quick succession are collected for this long.
pub(crate) const COLLECT: Duration = Duration::from_micros(200);
const SMALL_BYTES: usize = 4096;

/// A descriptor's registration in the epoll set. Without an interest it is removed: a hang-up would wake the reactor
/// repeatedly.
#[derive(Default)]
pub(crate) struct Watch {
    interest: Option<Interest>,
}

impl Watch {
    pub(crate) fn set(&mut self, epoll: &Epoll, fd: impl AsFd, token: u64, wanted: Option<Interest>) {
        let outcome = match (self.interest, wanted) {
            (before, after) if before == after => return,
            (None, Some(interest)) => epoll.add(fd, token, interest),
            (Some(_), Some(interest)) => epoll.modify(fd, token, interest),
            (Some(_), None) => epoll.remove(fd),
            (None, None) => return,
        };
        match outcome {
            Ok(()) => self.interest = wanted,
            Err(errno) => tracing::error!(%errno, "cannot watch a descriptor"),
        }
    }
}

/// The source of output.
pub(crate) enum Source {
    Pipe(OwnedFd),
    /// The terminal's master, through a private pipe.
    Terminal(Pipe),
}

/// One stream of output.
pub(crate) struct Output {
    pub(crate) source: Source,
    pub(crate) watch: Watch,
    /// Not watched. A timer or the result of a chore resumes it.
    pub(crate) paused: bool,
    /// Output stays in the pipe until a chore of the journal is done.
    pub(crate) awaits_chore: bool,
    /// No process has the terminal open at the moment. One may open it again while the child lives.
    hung_up: bool,
    last_pump: Instant,
    large_pieces: u32,
    pub(crate) is_enlarged: bool,
}

impl Output {
    pub(crate) fn new(source: Source) -> Output {
        let long_ago = Instant::now().checked_sub(Duration::from_secs(1)).unwrap_or_else(Instant::now);
        Output {
            source,
            watch: Watch::default(),
            paused: false,
            awaits_chore: false,
            hung_up: false,
            last_pump: long_ago,
            large_pieces: 0,
            is_enlarged: false,
        }
    }

    pub(crate) fn pipe(&self) -> &OwnedFd {
        match &self.source {
            Source::Pipe(pipe) => pipe,
            Source::Terminal(pipe) => &pipe.read,
        }
    }

    /// Counts moved bytes. True when the next read is to be delayed to collect more: not after silence, and not when
    /// much came at once.
    pub(crate) fn note(&mut self, bytes: usize, now: Instant) -> bool {
        let gap = now.saturating_duration_since(self.last_pump);
        self.last_pump = now;
        self.large_pieces = if bytes >= PIPE_BYTES / 2 { self.large_pieces.saturating_add(1) } else { 0 };
        bytes < SMALL_BYTES && gap < 2 * COLLECT
    }

    pub(crate) fn wants_larger_pipe(&self) -> bool {
        !self.is_enlarged && self.large_pieces >= ENLARGE_AFTER && matches!(self.source, Source::Pipe(_))
    }

    pub(crate) fn quiet_for(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.last_pump)
    }
}

pub(crate) struct Child {
    pub(crate) process: Process,
    pub(crate) writer: Writer,
    pub(crate) outputs: [Option<Output>; 2],
    pub(crate) master: Option<OwnedFd>,
    pub(crate) master_watch: Watch,
    pub(crate) input: Input,
    pub(crate) input_watch: Watch,
    pub(crate) input_blocked: bool,
    /// Until the start is confirmed.
    pub(crate) launch: Option<Launch>,
    /// The description and its file, until it is written.
    pub(crate) unwritten_description: Option<(OwnedFd, Vec<u8>)>,
    pub(crate) exit: Option<Exit>,
    pub(crate) exit_seen: Instant,
    pub(crate) last_byte: Instant,
    /// The last attempt to record output or the exit failed.
    pub(crate) stalled: bool,
    /// The description or the start record could not be written yet.
    pub(crate) start_unrecorded: bool,
}

/// The epoll token of a descriptor: the slot and the role in one number.
pub(crate) fn token(slot: u64, role: u8) -> u64 {
    slot << 4 | u64::from(role)
}

pub(crate) fn stream_role(stream: Stream) -> u8 {
    match stream {
        Stream::Stdout => role::STDOUT,
        Stream::Stderr => role::STDERR,
    }
}

pub(crate) fn stream_index(stream: Stream) -> usize {
    match stream {
        Stream::Stdout => 0,
        Stream::Stderr => 1,
    }
}

impl Child {
    pub(crate) fn slot(&self) -> u64 {
        self.process.slot().0
    }

    pub(crate) fn supervision(&self) -> &Supervision {
        &self.process.inner.description.supervision
    }

    /// Moves output of a stream into the journal, or discards it once the exit is recorded.
    pub(crate) fn pump(&mut self, stream: Stream, dev_null: &OwnedFd) -> outpost_journal::Result<Pumped> {
        let Some(output) = &mut self.outputs[stream_index(stream)] else {
            return Ok(Pumped::Moved(Moved::End));
        };
        output.awaits_chore = false;
        let from_master = match (&output.source, &self.master) {
            (Source::Terminal(pipe), Some(master)) => take_from_master(master, pipe, self.exit.is_some())?,
            _ => FromMaster::Moved(Moved::WouldBlock),
        };
        output.hung_up = matches!(from_master, FromMaster::HungUp);
        let moved = if self.writer.exit().is_some() {
            discard(output.pipe(), dev_null)
        } else {
            match self.writer.pump(stream, output.pipe())? {
                Pumped::Moved(moved) => moved,
                Pumped::AwaitsChore => {
                    (output.paused, output.awaits_chore) = (true, true);
                    return Ok(Pumped::AwaitsChore);
                }
            }
        };
        if let (Moved::Bytes(bytes), None) = (&moved, self.writer.exit()) {
            self.process.inner.shared.output_bytes.fetch_add(*bytes as u64, Ordering::Relaxed);
        }
        match (moved, from_master) {
            // The private pipe has no EOF. It ends when the terminal has ended and the pipe is empty.
            (Moved::WouldBlock, FromMaster::Moved(moved)) => Ok(Pumped::Moved(moved)),
            (moved, _) => Ok(Pumped::Moved(moved)),
        }
    }

    /// Whether output, or the record of the exit, waits for a chore of the journal.
    pub(crate) fn awaits_chore(&self) -> bool {
        self.writer.is_busy() || self.outputs.iter().flatten().any(|output| output.awaits_chore)
    }

    /// Work on files for a housekeeping thread.
    pub(crate) fn chores(&mut self) -> Vec<Chore> {
        let mut chores = self.writer.chores();
        chores.extend(self.input.chores());
        chores
    }

    /// Whether more output of this stream would drop what a reader has not read that the process waits for.
    pub(crate) fn would_drop_unread(&self, stream: Stream) -> bool {
        self.outputs[stream_index(stream)].is_some()
            && self
                .writer
                .would_drop(stream)
                .is_some_and(|last_seq| self.process.inner.readers.need(last_seq, self.supervision().at_cap))
    }

    /// Whether all output has ended.
    pub(crate) fn is_drained(&self) -> bool {
        self.outputs.iter().all(Option::is_none)
    }

    /// Publishes the state to readers and waiters, if it has changed.
    pub(crate) fn publish(&self) {
        self.process.inner.stdin_accepted.store(self.input.accepted(), Ordering::Release);
        self.process.inner.shared.syncing.note();
        let mut has_resumed = false;
        self.process.inner.progress.send_if_modified(|progress| {
            let before = *progress;
            *progress = Progress {
                last_seq: self.writer.journal().last_seq(),
                status: self.status(),
                stalled: self.stalled || self.start_unrecorded,
                stdout_ended: self.outputs[stream_index(Stream::Stdout)].is_none(),
                gone: before.gone,
            };
            has_resumed = before.stalled && !progress.stalled;
            *progress != before
        });
        if has_resumed {
            self.process.inner.shared.stalls.send_modify(|_| ());
        }
    }

    /// Publishes that the process waits because of an error.
    pub(crate) fn show_stall(&self, error: &dyn std::fmt::Display) {
        self.publish();
        self.process.inner.shared.stalls.send_replace(error.to_string());
    }

    fn status(&self) -> Status {
        match (self.writer.exit(), self.exit) {
            (Some(exit), _) => Status::Finished(exit),
            (None, Some(exit)) => Status::Exited(exit),
            (None, None) if self.launch.is_some() => Status::Starting,
            (None, None) => Status::Running,
        }
    }

    /// The descriptors that the keeper is to hold.
    pub(crate) fn held(&self) -> Vec<(u8, BorrowedFd<'_>)> {
        let mut held = self.input.held();
        for stream in [Stream::Stdout, Stream::Stderr] {
            match self.outputs[stream_index(stream)].as_ref().map(|output| &output.source) {
                Some(Source::Pipe(pipe)) => held.push((stream_role(stream), pipe.as_fd())),
                Some(Source::Terminal(pipe)) => {
                    held.push((role::FROM_MASTER_READ, pipe.read.as_fd()));
                    held.push((role::FROM_MASTER_WRITE, pipe.write.as_fd()));
                }
                None => {}
            }
        }
        held.extend(self.master.as_ref().map(|master| (role::MASTER, master.as_fd())));
        held
    }

    /// The state for a keeper that adopts the child.
    pub(crate) fn keeper_state(&self) -> ProcessState {
        self.exit.map_or(ProcessState::Running, ProcessState::Ended)
    }

    /// Sets the epoll registrations to what is wanted now.
    pub(crate) fn rewatch(&mut self, epoll: &Epoll) {
        let slot = self.slot();
        let (mut master_read, mut hung_up) = (false, false);
        for stream in [Stream::Stdout, Stream::Stderr] {
            let Some(output) = &mut self.outputs[stream_index(stream)] else { continue };
            let wanted = !output.paused;
            let Output { source, watch, hung_up: is_hung_up, .. } = output;
            match source {
                Source::Pipe(pipe) => {
                    watch.set(
                        epoll,
                        &*pipe,
                        token(slot, stream_role(stream)),
                        wanted.then_some(Interest::Read),
                    );
                }
                Source::Terminal(_) => (master_read, hung_up) = (wanted, *is_hung_up),
            }
        }
        let write = self.input_blocked;
        match (&self.input.target, &self.master) {
            (Target::Pipe(pipe), _) => {
                self.input_watch.set(epoll, pipe, token(slot, role::STDIN), write.then_some(Interest::Write));
            }
            (_, None) => {}
            (_, Some(master)) => {
                let wanted = match (master_read, write) {
                    // Level-triggered, a hang-up would wake the reactor repeatedly.
                    _ if hung_up => Some(Interest::Edge),
                    (true, true) => Some(Interest::ReadWrite),
                    (true, false) => Some(Interest::Read),
                    (false, true) => Some(Interest::Write),
                    (false, false) => None,
                };
                self.master_watch.set(epoll, master, token(slot, role::MASTER), wanted);
            }
        }
    }

    /// Closes the descriptors of a stream at EOF. Returns the roles that the keeper is to release. The keeper holds the
    /// same open file descriptions, so closing ours does not remove them from the epoll set.
    pub(crate) fn end_stream(&mut self, epoll: &Epoll, stream: Stream) -> Vec<u8> {
        let Some(mut output) = self.outputs[stream_index(stream)].take() else { return Vec::new() };
        match &output.source {
            Source::Pipe(pipe) => {
                output.watch.set(epoll, pipe, 0, None);
                // No message for the keeper's copy: it is closed when the process is forgotten.
                Vec::new()
            }
            Source::Terminal(_) => {
                self.input.target = Target::Closed;
                if let Some(master) = self.master.take() {
                    self.master_watch.set(epoll, &master, 0, None);
                }
                vec![
                    role::FROM_MASTER_READ,
                    role::FROM_MASTER_WRITE,
                    role::TO_MASTER_READ,
                    role::TO_MASTER_WRITE,
                    role::MASTER,
                ]
            }
        }
    }

    /// Closes the child's stdin. Returns the roles that the keeper is to release.
    pub(crate) fn end_input(&mut self, epoll: &Epoll) -> Vec<u8> {
        self.input_blocked = false;
        self.input.waiters.clear();
        let reason = if self.exit.is_some() { crate::Error::NotRunning } else { crate::Error::NoStdin };
        for offer in self.input.offers.drain(..) {
            offer.refuse(reason.clone());
        }
        let target = std::mem::replace(&mut self.input.target, Target::Closed);
        match target {
            Target::Pipe(pipe) => {
                self.input_watch.set(epoll, &pipe, 0, None);
                vec![role::STDIN]
            }
            Target::Terminal(_) => vec![role::TO_MASTER_READ, role::TO_MASTER_WRITE],
            Target::Closed => vec![role::STDIN],
        }
    }
}

/// The result of a read from a terminal's master.
enum FromMaster {
    Moved(Moved),
    /// EIO: no process has the slave open. While the child lives this is not EOF: it may open `/dev/tty` again, and
    /// closing the master would send SIGHUP to it.
    HungUp,
}

/// Moves output from the terminal to its private pipe, as far as that has room.
fn take_from_master(master: &OwnedFd, pipe: &Pipe, has_exited: bool) -> outpost_journal::Result<FromMaster> {
    match pipe::splice(master, &pipe.write, AT_ONCE_BYTES) {
        Ok(moved) => Ok(FromMaster::Moved(moved)),
        Err(_) if has_exited => Ok(FromMaster::Moved(Moved::End)),
        Err(Errno::IO) => Ok(FromMaster::HungUp),
        Err(errno) => {
            Err(outpost_journal::Error::Io { operation: "read", path: "the terminal".into(), errno })
        }
    }
}

fn discard(pipe: &OwnedFd, dev_null: &OwnedFd) -> Moved {
    pipe::splice(pipe, dev_null, LARGE_PIPE_BYTES).unwrap_or(Moved::End)
}

#[cfg(test)]
mod tests {
    use super::*;
    use outpost_sys::file;

    #[test]
    fn an_error_of_a_terminal_is_eof_only_after_the_exit() {
        // Reading it fails with another error than EIO.
        let master = file::open("/", file::Open::Directory).unwrap();
        let pipe = pipe::pipe().unwrap();
        assert!(take_from_master(&master, &pipe, false).is_err(), "read again later");
        assert!(matches!(take_from_master(&master, &pipe, true), Ok(FromMaster::Moved(Moved::End))));
    }
}
