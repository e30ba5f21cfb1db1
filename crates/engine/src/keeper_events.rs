//! The keeper's events: states of children, notices to the program, results of replacements.

use crate::Error;
use crate::adoption::ReceivedEntry;
use crate::child::Child;
use crate::engine::Notice;
use crate::launch::Launch;
use crate::link::Received;
use crate::process::{Os, WhileAlive};
use crate::reactor::{LINK, RETRY, Reactor};
use crate::spec::Slot;
use crate::timers::Due;
use outpost_keeper::{Component, Event, NOT_ADOPTED, ProcessState, Request};
use outpost_sys::Errno;
use outpost_sys::epoll::Interest;
use outpost_sys::pidfd::{self, Exit, Pidfd};
use outpost_sys::signal::Signal;
use outpost_sys::spawn::Failure;
use std::os::fd::OwnedFd;

impl Reactor {
    pub(crate) fn handle_link(&mut self) {
        self.shared.link.flush();
        if self.keeper.lacks_any() {
            self.hand_over_all();
        }
        loop {
            match self.shared.link.receive() {
                Received::Event(event, fds) => self.handle_event(event, fds),
                Received::Nothing => break,
                Received::Closed => return self.keeper_died(),
            }
        }
    }

    /// Watches the link for events, and for room while requests are queued.
    pub(crate) fn watch_link(&mut self) {
        if let Some(socket) = self.shared.link.socket() {
            let wanted = if self.shared.link.wants_room() { Interest::ReadWrite } else { Interest::Read };
            self.link_watch.set(&self.epoll, &*socket, LINK, Some(wanted));
        }
    }

    /// Makes a child known whose start another thread has requested.
    fn receive_requested(&mut self, slot: u64) {
        if !self.children.contains_key(&slot) {
            // That thread queues the child before it unlocks the link.
            drop(self.shared.link.lock());
            self.handle_commands_until(|reactor| reactor.children.contains_key(&slot));
        }
    }

    fn handle_event(&mut self, event: Event, fds: Vec<OwnedFd>) {
        if let Event::Entry { slot, .. } = event {
            self.receive_requested(slot);
        }
        match event {
            Event::Entry { slot, pidfd, held, .. }
                if !self.children.contains_key(&slot) && fds.len() < held.len() + usize::from(pidfd) =>
            {
                self.still_missing(slot);
            }
            Event::Entry { slot, pid, state, pidfd, held } if !self.children.contains_key(&slot) => {
                self.adopt_all(vec![ReceivedEntry::new(slot, pid, state, pidfd, &held, fds)]);
            }
            Event::Entry { slot, pid, state, pidfd: true, .. }
                if fds.is_empty() && self.awaits_pidfd(slot, state) =>
            {
                // No descriptor was free for the pidfd. Without it the process could neither be signalled nor handed
                // over, so the start is not confirmed yet.
                let child = self.children.get_mut(&slot);
                if let Some(launch) = child.and_then(|child| child.launch.as_mut()) {
                    launch.reported_pid = Some(pid);
                }
                self.schedule(RETRY, Due::Resend(slot));
            }
            Event::Entry { slot, pid, state, .. } => {
                self.no_longer_missing(slot);
                self.update_child(slot, pid, state, fds);
            }
            Event::TableEnd => {}
            Event::Retire => self.shared.notify(Notice::Retire),
            Event::Shutdown => self.shared.notify(Notice::Shutdown),
            Event::Reload => self.shared.notify(Notice::Reload),
            Event::Replaced(component) => self.replacement_done(component, Ok(())),
            Event::NotReplaced(component, errno) => self.replacement_done(component, Err(errno)),
        }
    }

    fn awaits_pidfd(&self, slot: u64, state: ProcessState) -> bool {
        let has_no_pidfd = |child: &Child| child.process.inner.os.get().is_none();
        matches!(state, ProcessState::Starting | ProcessState::Running)
            && self.children.get(&slot).is_some_and(has_no_pidfd)
    }

    fn update_child(&mut self, slot: u64, pid: i32, state: ProcessState, fds: Vec<OwnedFd>) {
        if let Some(pidfd) = fds.into_iter().next() {
            self.cloned(slot, pid, pidfd);
        }
        match state {
            ProcessState::Starting => {}
            ProcessState::Running => self.executed(slot),
            ProcessState::Ended(exit) => {
                if self.awaits_pidfd(slot, ProcessState::Running) {
                    // It ended before its pidfd could be received. Its description is written all the same.
                    self.record_start(slot);
                }
                // Often the end is reported with the start. The client that waits for the start is woken once for both.
                let launch = self.children.get_mut(&slot).and_then(Child::take_executed);
                self.exited(slot, exit);
                self.confirm(slot, launch);
            }
            ProcessState::Failed(failure) => self.failed(slot, failure),
        }
    }

    fn failed(&mut self, slot: u64, failure: Failure) {
        let runs = |child: &Child| child.process.inner.os.get().is_some();
        if failure == NOT_ADOPTED && self.children.get(&slot).is_some_and(runs) {
            self.shared.link.send(Request::Forget { slot }, Vec::new());
            self.keeper.add_unheld(slot);
            return self.schedule(RETRY, Due::HandOver);
        }
        if let Some(child) = self.children.get(&slot).filter(|child| child.launch.is_none()) {
            // The keeper has lost a process whose start is confirmed. Its record stays.
            tracing::error!(process = %Slot(slot), ?failure, "the keeper lost a running process; killing it");
            if let Some(pidfd) = child.process.inner.os.get().and_then(|os| os.pidfd.get()) {
                let _gone_already = pidfd::signal(&*pidfd, Signal::KILL);
            }
            return self.exited(slot, Exit::UNKNOWN);
        }
        self.shared.link.send(Request::Forget { slot }, Vec::new());
        if let Some(mut child) = self.children.remove(&slot) {
            // Before the reply, so that the client can use the key again.
            self.discard_failed(&child.process);
            let program = child.process.inner.description.program.clone();
            if let Some(launch) = child.launch.take() {
                let _gone = launch.reply.send(Err(Error::Start { program, failure }));
            }
        }
    }

    pub(crate) fn replacement_done(&mut self, component: Component, outcome: std::result::Result<(), Errno>) {
        tracing::info!(?component, ?outcome, "replacement");
        if let Some(reply) = self.keeper.take_replacement() {
            let _gone = reply.send(outcome);
        }
    }

    /// The keeper has cloned the child.
    fn cloned(&mut self, slot: u64, pid: i32, pidfd: OwnedFd) {
        let has_no_pidfd = |child: &&Child| child.process.inner.os.get().is_none();
        if let Some(child) = self.children.get(&slot).filter(has_no_pidfd) {
            let _set_once = child.process.inner.os.set(os(pid, pidfd));
            self.record_start(slot);
            self.kill_if_forgotten(slot);
        }
    }

    /// Records a start, repeatedly until that succeeds: the next worker kills a process without a description.
    pub(crate) fn record_start(&mut self, slot: u64) {
        let Some(child) = self.children.get_mut(&slot) else { return };
        let recorded = child.record_start();
        let is_new = recorded.is_err() && !child.start_unrecorded;
        child.start_unrecorded = recorded.is_err();
        if let Err(error) = recorded {
            if is_new {
                tracing::error!(process = %child.process.slot(), %error, "cannot record a start; retrying");
                child.show_stall(&error);
            }
            child.publish();
            return self.schedule(RETRY, Due::Record(slot));
        }
        if child.launch.as_ref().is_some_and(|launch| launch.has_executed) {
            self.executed(slot);
        }
    }

    /// The child has executed its program.
    pub(crate) fn executed(&mut self, slot: u64) {
        let Some(child) = self.children.get_mut(&slot) else { return };
        let launch = child.take_executed();
        child.publish();
        child.rewatch(&self.epoll);
        self.confirm(slot, launch);
    }

    /// Replies to the client that a process was started.
    fn confirm(&mut self, slot: u64, launch: Option<Launch>) {
        if let Some(launch) = launch {
            let replaced = self.shared.table().claim(Slot(slot));
            if let Some(replaced) = replaced {
                self.forget(replaced.slot());
            }
            let _gone = launch.reply.send(Ok(()));
        }
    }
}

pub(crate) fn os(pid: i32, pidfd: OwnedFd) -> Os {
    let pidfd = Pidfd::received(pid, pidfd);
    let start_ticks = pidfd.identity().map_or(0, |identity| identity.start_ticks());
    Os { pid, pidfd: WhileAlive::new(Some(pidfd)), start_ticks }
}
