//! The reactor's work with ends: of processes, of their records, and of records there is no room for.

use crate::child::Child;
use crate::kill;
use crate::process::Process;
use crate::reactor::{Due, RETRY, Reactor, outpost_now_ms};
use crate::spec::{Drain, Rest, Slot};
use outpost_journal::Stream;
use outpost_keeper::Request;
use outpost_sys::Errno;
use outpost_sys::pidfd::Exit;
use outpost_sys::pipe::Moved;
use std::time::{Duration, Instant};

/// How often at most a process whose output has not ended is looked at.
const DRAIN_LOOK: Duration = Duration::from_millis(10);

/// How often, and how many times, a killed tree is looked at until nobody is left of it.
const REST_LOOK: Duration = Duration::from_millis(20);
const REST_LOOKS_MAX: u32 = 250;

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
        let exit_seen = child.exit_seen;
        let waiting_for_disk = child.stalled;
        let quiet_since = child.last_byte.max(child.exit_seen);
        let quiet = now.saturating_duration_since(quiet_since) >= child.drain.quiet;
        let enough = quiet || now.saturating_duration_since(child.exit_seen) >= child.drain.longest;
        let waiting =
            waiting_for_disk || Stream::ALL.into_iter().any(|stream| child.would_rob_reader(stream));
        if !child.is_drained() && (!enough || waiting) {
            let Drain { quiet, longest } = child.drain;
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
            child.publish();
            tracing::error!(process = %child.process.slot(), %error, "an exit cannot be recorded; trying again");
            return self.schedule(RETRY, Due::Drain(slot));
        }
        child.stalled = false;
        child.publish();
        self.shared.exits.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
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
            self.shared.erase(&process);
        }
    }

    fn leave(&mut self, slot: u64) {
        let Some(child) = self.children.get(&slot) else { return };
        if child.rest == Rest::Ends {
            let process = child.process.clone();
            match self.shared.cgroups {
                Some(_) => self.end_rest(process.slot(), 0),
                // Sweeping /proc may take a while, and nothing here may.
                None => drop(std::thread::spawn(move || kill::kill_tree_now(&process))),
            }
        }
        self.let_go(slot);
    }

    /// Kills what a process has left in its cgroup. Those that die take a moment to leave it.
    pub(crate) fn end_rest(&mut self, slot: Slot, times: u32) {
        let Some(cgroups) = &self.shared.cgroups else { return };
        let group = cgroups.group(&slot.to_string());
        match group.remove() {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) if times >= REST_LOOKS_MAX => {
                tracing::warn!(process = %slot, %errno, "some that a process started cannot be ended");
            }
            Err(_) => {
                let _gone_meanwhile = group.kill();
                self.schedule(REST_LOOK, Due::Rest(slot.0, times + 1));
            }
        }
    }

    /// Moves once more what waits on each stream; true when there was something and there is time for another look, or when
    /// it could not be moved, for which the end waits as long as it takes.
    fn take_rest(&mut self, slot: u64, since_exit: Duration) -> bool {
        let mut moved = false;
        for stream in Stream::ALL {
            let Some(child) = self.children.get_mut(&slot) else { return false };
            match child.pump(stream, &self.nowhere) {
                Ok(outcome) => moved |= matches!(outcome, Moved::Bytes(_)),
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
        moved && since_exit < child.drain.longest
    }

    /// Forgets the descriptors of a finished process. While a descendant holds its pipes, they are read to nowhere, so
    /// that it is not killed by writing.
    pub(crate) fn let_go(&mut self, slot: u64) {
        let Some(child) = self.children.get_mut(&slot) else { return };
        if child.forgotten {
            self.shared.erase(&child.process);
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
            // With descendants left in it the group stays; it goes with the record of the process.
            self.shared.leave_cgroup(&child.process);
            if child.input.accepted() > 0 {
                self.shared.store.empty_stdin_log(child.process.slot());
            }
        }
    }

    /// A process that never ran leaves nothing behind.
    pub(crate) fn abandon(&mut self, process: &Process) {
        self.shared.unlist(process);
        self.shared.erase(process);
    }

    /// Drops a process and all that is known of it. One that runs is killed first and dropped when it has ended.
    pub(crate) fn forget(&mut self, slot: Slot) {
        let Some(process) = self.shared.table().by_slot(slot) else { return };
        self.shared.unlist(&process);
        match self.children.get_mut(&slot.0).filter(|child| child.writer.exit().is_none()) {
            Some(child) => {
                child.forgotten = true;
                if child.exit.is_none() {
                    // Sweeping /proc may take a while, and nothing here may.
                    std::thread::spawn(move || kill::kill_tree_now(&process));
                }
            }
            None => {
                self.leave_soon();
                self.dropped.push(process);
            }
        }
    }

    pub(crate) fn keep_retention(&mut self) {
        let oldest = outpost_now_ms().saturating_sub(self.shared.config().exited_kept.as_millis() as u64);
        let ended: Vec<Process> = self.shared.ended_processes();
        let surplus = ended.len().saturating_sub(self.shared.config().exited_max);
        for (rank, process) in ended.iter().enumerate() {
            if rank < surplus || self.shared.ended_at_ms(process) < oldest {
                self.forget(process.slot());
            }
        }
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
            match largest.writer.shed() {
                Ok(true) => total -= before.saturating_sub(largest.writer.journal().bytes_kept()).min(total),
                Ok(false) | Err(_) => return,
            }
        }
    }
}
