//! The reactor's work with ends: of processes, of their records, and of records there is no room for.

use crate::child::Child;
use crate::kill;
use crate::process::{Process, Status};
use crate::reactor::{Due, RETENTION_TICK, RETRY, Reactor, outpost_now_ms};
use crate::spec::{Drain, Rest, Slot};
use outpost_journal::{Pumped, Stream};
use outpost_keeper::Request;
use outpost_sys::pidfd::Exit;
use outpost_sys::pipe::Moved;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How often at most a process whose output has not ended is looked at.
const DRAIN_LOOK: Duration = Duration::from_millis(10);

/// Records that one turn of the reactor drops at most, and the pause before the next ones.
const DROPPED_AT_ONCE: usize = 32;
const DROP_PAUSE: Duration = Duration::from_millis(20);

/// Clearing up after a process waits until whoever waits for its end has heard of it.
const LEAVE_AFTER: Duration = Duration::from_millis(1);

/// It takes its time from whatever is being started, so it waits for a while without a start, but no longer than this.
const CALM: Duration = Duration::from_millis(3);
const LEAVE_LATEST: Duration = Duration::from_millis(20);

impl Reactor {
    pub(crate) fn exited(&mut self, slot: u64, exit: Exit) {
        let Some(child) = self.children.get_mut(&slot).filter(|child| child.exit.is_none()) else { return };
        child.exit = Some(exit);
        child.exit_seen = Instant::now();
        let roles = child.end_input(&self.epoll);
        // Mostly all it wrote is there, and the end of it too.
        for stream in Stream::ALL {
            self.pump(slot, stream);
        }
        self.drain(slot);
        // Most have finished by now, and leave with all that is held for them.
        let stays = |child: &&mut Child| child.writer.exit().is_none() || !child.is_drained();
        if let Some(child) = self.children.get_mut(&slot).filter(stays) {
            child.publish();
            child.rewatch(&self.epoll);
            for role in roles {
                self.link.send(Request::Release { slot, role }, Vec::new());
            }
        }
    }

    /// Records the exit once all output is in, or when what still holds the pipes has been silent long enough.
    pub(crate) fn drain(&mut self, slot: u64) {
        let now = Instant::now();
        let Some(child) = self.children.get_mut(&slot) else { return };
        let Some(exit) = child.exit else { return };
        if child.writer.exit().is_some() {
            if !self.leaving.contains(&slot) {
                self.let_go(slot);
            }
            return;
        }
        // Resumed when the chore is done.
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
            waiting_for_disk || Stream::ALL.into_iter().any(|stream| child.would_rob_reader(stream));
        if !child.is_drained() && (!enough || waiting) {
            let Drain { quiet, longest } = child.supervision().drain;
            let left = longest.saturating_sub(now.saturating_duration_since(exit_seen));
            return self.schedule(quiet.min(left).max(DRAIN_LOOK), Due::Drain(slot));
        }
        // Silence by the clock may be our own: whatever waits now is taken before the end is written.
        if !child.is_drained() && self.take_rest(slot, now.saturating_duration_since(exit_seen)) {
            return self.schedule(Duration::ZERO, Due::Drain(slot));
        }
        let Some(child) = self.children.get_mut(&slot) else { return };
        if let Err(error) = child.writer.finish(&exit) {
            child.stalled = true;
            child.show_stall(&error);
            tracing::error!(process = %child.process.slot(), %error, "an exit cannot be recorded; trying again");
            return self.schedule(RETRY, Due::Drain(slot));
        }
        child.stalled = false;
        child.process.set_ended_ms(outpost_now_ms());
        child.publish();
        self.shared.exits.fetch_add(1, Ordering::Relaxed);
        self.leave_soon();
        self.leaving.push(slot);
    }

    /// To be called before something is noted for [`Reactor::leave_all`].
    fn leave_soon(&mut self) {
        if self.leaving.is_empty() && self.dropped.is_empty() {
            self.leave_by = Instant::now() + LEAVE_LATEST;
            self.schedule(LEAVE_AFTER, Due::Leave);
        }
    }

    pub(crate) fn leave_if_calm(&mut self, now: Instant) {
        let calm = (self.last_start + CALM).min(self.leave_by);
        match calm > now {
            true => self.schedule(calm - now, Due::Leave),
            false => self.leave_all(),
        }
    }

    /// Clears up after those that have finished.
    pub(crate) fn leave_all(&mut self) {
        for slot in std::mem::take(&mut self.leaving) {
            self.leave(slot);
        }
        for process in std::mem::take(&mut self.dropped) {
            self.shared.housekeeping.erase(process);
        }
    }

    fn leave(&mut self, slot: u64) {
        let Some(child) = self.children.get(&slot) else { return };
        if child.supervision().rest == Rest::Ends {
            kill::begin_kill_tree(&child.process);
            self.shared.housekeeping.remove_descendants(child.process.clone());
        }
        self.let_go(slot);
    }

    /// Moves once more what waits on each stream. True when there was something and there is time for another look, or when
    /// it could not be moved: the exit is not recorded before it is.
    fn take_rest(&mut self, slot: u64, since_exit: Duration) -> bool {
        let (mut moved, mut waits) = (false, false);
        for stream in Stream::ALL {
            let Some(child) = self.children.get_mut(&slot) else { return false };
            match child.pump(stream, &self.nowhere) {
                Ok(Pumped::Moved(outcome)) => moved |= matches!(outcome, Moved::Bytes(_)),
                Ok(Pumped::Waits) => waits = true,
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

    /// Forgets the descriptors of a finished process. While a descendant holds its pipes, they are read to nowhere, so
    /// that it is not killed by writing.
    pub(crate) fn let_go(&mut self, slot: u64) {
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
        self.link.send(Request::Forget { slot }, Vec::new());
        if let Some(child) = self.children.remove(&slot) {
            child.process.let_go();
            self.shared.housekeeping.leave(child);
        }
    }

    /// A process that never ran leaves nothing behind.
    pub(crate) fn abandon(&mut self, process: &Process) {
        self.shared.unlist(process);
        self.shared.housekeeping.erase(process.clone());
    }

    /// Drops a process and all that is known of it. One that runs is killed first and dropped when it has ended.
    pub(crate) fn forget(&mut self, slot: Slot) {
        let Some(process) = self.shared.table().by_slot(slot) else { return };
        self.shared.unlist(&process);
        if let Status::Finished(_) = process.status() {
            self.leave_soon();
            return self.dropped.push(process);
        }
        process.inner.forgotten.store(true, Ordering::Relaxed);
        self.kill_if_forgotten(slot.0);
    }

    /// Kills a process whose record was dropped while it ran. One that is still on its way here is killed when it arrives.
    pub(crate) fn kill_if_forgotten(&mut self, slot: u64) {
        let doomed =
            |child: &&Child| child.exit.is_none() && child.process.inner.forgotten.load(Ordering::Relaxed);
        if let Some(child) = self.children.get(&slot).filter(doomed) {
            kill::begin_kill_tree(&child.process);
        }
    }

    /// Drops ended processes that are too old or too many, a few in each turn. True when there are more.
    pub(crate) fn keep_retention(&mut self) -> bool {
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

    /// Keeps retention now and again when it is due.
    pub(crate) fn retain(&mut self) {
        let next = if self.keep_retention() { DROP_PAUSE } else { RETENTION_TICK };
        self.schedule(next, Due::Retention);
    }

    /// Over the host's cap, ended processes go first, oldest first; then the largest lose their oldest output.
    pub(crate) fn keep_host_cap(&mut self) {
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
            if !largest.writer.shed() {
                return;
            }
            total -= before.saturating_sub(largest.writer.journal().bytes_kept()).min(total);
            let slot = largest.slot();
            self.dispatch(slot);
        }
    }
}
