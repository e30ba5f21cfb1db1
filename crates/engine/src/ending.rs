//! The end of processes: the last output, the exit record, the cleanup, and the retention of records.

use crate::child::Child;
use crate::kill;
use crate::process::{Process, Status};
use crate::reactor::{RETENTION_TICK, RETRY, Reactor, outpost_now_ms};
use crate::spec::{Descendants, Drain, Slot};
use crate::timers::Due;
use outpost_journal::{Pumped, Stream};
use outpost_keeper::Request;
use outpost_sys::pidfd::Exit;
use outpost_sys::pipe::Moved;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// The shortest interval in which a process is polled whose output has not ended.
const DRAIN_POLL: Duration = Duration::from_millis(10);

/// Maximum number of records that one turn of the reactor drops, and the pause before the next ones.
const DROPPED_AT_ONCE: usize = 32;
const DROP_PAUSE: Duration = Duration::from_millis(20);

/// The cleanup after a process begins after the clients that wait for its end were woken.
const CLEANUP_AFTER: Duration = Duration::from_millis(1);

/// The cleanup competes with starts, so it waits until there was none for a while, but no longer than the second.
const QUIET: Duration = Duration::from_millis(3);
const CLEANUP_LATEST: Duration = Duration::from_millis(20);

/// Work that is done after processes have ended.
pub(crate) struct Cleanup {
    /// Ended processes whose descriptors are to be closed.
    ended: Vec<u64>,
    /// Records that are to be erased.
    dropped: Vec<Process>,
    /// The latest time for both.
    due_by: Instant,
    last_start: Instant,
}

impl Cleanup {
    pub(crate) fn new() -> Cleanup {
        let now = Instant::now();
        Cleanup { ended: Vec::new(), dropped: Vec::new(), due_by: now, last_start: now }
    }

    pub(crate) fn note_start(&mut self) {
        self.last_start = Instant::now();
    }
}

impl Reactor {
    pub(crate) fn exited(&mut self, slot: u64, exit: Exit) {
        let Some(child) = self.children.get_mut(&slot).filter(|child| child.exit.is_none()) else { return };
        child.exit = Some(exit);
        child.exit_seen = Instant::now();
        let roles = child.end_input(&self.epoll);
        // Mostly all of its output and EOF are in the pipes.
        for stream in Stream::ALL {
            self.pump(slot, stream);
        }
        self.drain(slot);
        // Most processes are finished by now, and the cleanup releases everything at once.
        let stays = |child: &&mut Child| child.writer.exit().is_none() || !child.is_drained();
        if let Some(child) = self.children.get_mut(&slot).filter(stays) {
            child.publish();
            child.rewatch(&self.epoll);
            for role in roles {
                self.shared.link.send(Request::Release { slot, role }, Vec::new());
            }
        }
    }

    /// Records the exit when all output is recorded, or when the descendants that hold the pipes were silent for long
    /// enough.
    pub(crate) fn drain(&mut self, slot: u64) {
        let now = Instant::now();
        let Some(child) = self.children.get_mut(&slot) else { return };
        let Some(exit) = child.exit else { return };
        if child.writer.exit().is_some() {
            if !self.cleanup.ended.contains(&slot) {
                self.close_fds(slot);
            }
            return;
        }
        // The result of the chore resumes this.
        if child.awaits_chore() {
            return;
        }
        let exit_seen = child.exit_seen;
        let waiting_for_disk = child.stalled;
        let quiet_since = child.last_byte.max(child.exit_seen);
        let quiet = now.saturating_duration_since(quiet_since) >= child.supervision().drain.quiet;
        let enough =
            quiet || now.saturating_duration_since(child.exit_seen) >= child.supervision().drain.longest;
        let waiting =
            waiting_for_disk || Stream::ALL.into_iter().any(|stream| child.would_drop_unread(stream));
        if !child.is_drained() && (!enough || waiting) {
            let Drain { quiet, longest } = child.supervision().drain;
            let left = longest.saturating_sub(now.saturating_duration_since(exit_seen));
            return self.schedule(quiet.min(left).max(DRAIN_POLL), Due::Drain(slot));
        }
        // The reactor may have been slow itself, so it reads once more before it records the exit.
        if !child.is_drained() && self.drain_remaining(slot, now.saturating_duration_since(exit_seen)) {
            return self.schedule(Duration::ZERO, Due::Drain(slot));
        }
        let Some(child) = self.children.get_mut(&slot) else { return };
        if let Err(error) = child.writer.finish(&exit) {
            child.stalled = true;
            child.show_stall(&error);
            tracing::error!(process = %child.process.slot(), %error, "cannot record an exit; retrying");
            return self.schedule(RETRY, Due::Drain(slot));
        }
        child.stalled = false;
        child.process.set_ended_ms(outpost_now_ms());
        child.publish();
        self.shared.exits.fetch_add(1, Ordering::Relaxed);
        self.schedule_cleanup();
        self.cleanup.ended.push(slot);
    }

    /// Called before work is added to [`Cleanup`].
    fn schedule_cleanup(&mut self) {
        if self.cleanup.ended.is_empty() && self.cleanup.dropped.is_empty() {
            self.cleanup.due_by = Instant::now() + CLEANUP_LATEST;
            self.schedule(CLEANUP_AFTER, Due::Cleanup);
        }
    }

    pub(crate) fn clean_up_if_quiet(&mut self, now: Instant) {
        let quiet_at = (self.cleanup.last_start + QUIET).min(self.cleanup.due_by);
        match quiet_at > now {
            true => self.schedule(quiet_at - now, Due::Cleanup),
            false => self.clean_up(),
        }
    }

    /// Cleans up after processes that have ended.
    pub(crate) fn clean_up(&mut self) {
        for slot in std::mem::take(&mut self.cleanup.ended) {
            self.clean_up_one(slot);
        }
        for process in std::mem::take(&mut self.cleanup.dropped) {
            self.shared.housekeeping.erase(process);
        }
    }

    fn clean_up_one(&mut self, slot: u64) {
        let Some(child) = self.children.get(&slot) else { return };
        if child.supervision().descendants == Descendants::Kill {
            kill::begin_kill_tree(&child.process);
            self.shared.housekeeping.remove_descendants(child.process.clone());
        }
        self.close_fds(slot);
    }

    /// Moves remaining output of each stream. True when there was some and there is time for another look, or when it
    /// could not be moved: the exit is recorded after it.
    fn drain_remaining(&mut self, slot: u64, since_exit: Duration) -> bool {
        let (mut moved, mut waits) = (false, false);
        for stream in Stream::ALL {
            let Some(child) = self.children.get_mut(&slot) else { return false };
            match child.pump(stream, self.pump.dev_null()) {
                Ok(Pumped::Moved(outcome)) => moved |= matches!(outcome, Moved::Bytes(_)),
                Ok(Pumped::AwaitsChore) => waits = true,
                Err(error) => {
                    self.stall(slot, stream, &error);
                    return true;
                }
            }
        }
        let Some(child) = self.children.get_mut(&slot) else { return false };
        if moved {
            child.last_byte = Instant::now();
            child.publish();
        }
        child.rewatch(&self.epoll);
        let longest = child.supervision().drain.longest;
        self.dispatch(slot);
        waits || (moved && since_exit < longest)
    }

    /// Closes the descriptors of a finished process. While a descendant holds its pipes, the output is read and
    /// discarded, so that SIGPIPE does not kill it.
    fn close_fds(&mut self, slot: u64) {
        let Some(child) = self.children.get_mut(&slot) else { return };
        if child.process.inner.forgotten.load(Ordering::Relaxed) {
            self.shared.housekeeping.erase(child.process.clone());
        }
        if !child.is_drained() {
            for output in child.outputs.iter_mut().flatten() {
                output.paused = false;
            }
            return child.rewatch(&self.epoll);
        }
        self.shared.link.send(Request::Forget { slot }, Vec::new());
        if let Some(child) = self.children.remove(&slot) {
            child.process.close_fds();
            self.shared.housekeeping.clean_up(child);
        }
    }

    /// Removes everything of a process that never ran.
    pub(crate) fn discard_failed(&mut self, process: &Process) {
        self.shared.unregister(process);
        self.shared.housekeeping.erase(process.clone());
    }

    /// Drops a process and its record. A process that runs is killed first, and dropped when it has ended.
    pub(crate) fn forget(&mut self, slot: Slot) {
        let Some(process) = self.shared.table().by_slot(slot) else { return };
        self.shared.unregister(&process);
        if let Status::Finished(_) = process.status() {
            self.schedule_cleanup();
            return self.cleanup.dropped.push(process);
        }
        process.inner.forgotten.store(true, Ordering::Relaxed);
        self.kill_if_forgotten(slot.0);
    }

    /// Kills a process whose record was dropped while it ran. A process that the reactor has not received yet is killed
    /// then.
    pub(crate) fn kill_if_forgotten(&mut self, slot: u64) {
        let is_forgotten =
            |child: &&Child| child.exit.is_none() && child.process.inner.forgotten.load(Ordering::Relaxed);
        if let Some(child) = self.children.get(&slot).filter(is_forgotten) {
            kill::begin_kill_tree(&child.process);
        }
    }

    /// Drops ended processes that are too old or too many, a few in each turn. True when there are more.
    pub(crate) fn enforce_retention(&mut self) -> bool {
        let config = self.shared.config();
        let oldest = outpost_now_ms().saturating_sub(config.exited_kept.as_millis() as u64);
        let ended: Vec<Process> = self.shared.ended_processes();
        let surplus = ended.len().saturating_sub(config.exited_max);
        let expired = |(rank, process): &(usize, Process)| *rank < surplus || process.ended_ms() <= oldest;
        let mut expired = ended.into_iter().enumerate().filter(expired).map(|(_, process)| process);
        for process in expired.by_ref().take(DROPPED_AT_ONCE) {
            self.forget(process.slot());
        }
        expired.next().is_some()
    }

    /// Enforces the retention now, and schedules the next time.
    pub(crate) fn retain(&mut self) {
        let next = if self.enforce_retention() { DROP_PAUSE } else { RETENTION_TICK };
        self.schedule(next, Due::Retention);
    }

    /// Above the host's cap drops ended processes, oldest first, and then the oldest output of the largest journals.
    pub(crate) fn enforce_host_cap(&mut self) {
        let max = self.shared.config().host_bytes_max;
        let mut total = self.shared.bytes_kept();
        for process in if total > max { self.shared.ended_processes() } else { Vec::new() } {
            if total <= max {
                return;
            }
            total = total.saturating_sub(process.inner.journal.bytes_kept());
            self.forget(process.slot());
        }
        while total > max {
            let Some(largest) =
                self.children.values_mut().max_by_key(|child| child.writer.journal().bytes_kept())
            else {
                return;
            };
            let before = largest.writer.journal().bytes_kept();
            if !largest.writer.drop_oldest_segment() {
                return;
            }
            total -= before.saturating_sub(largest.writer.journal().bytes_kept()).min(total);
            let slot = largest.slot();
            self.dispatch(slot);
        }
    }
}
