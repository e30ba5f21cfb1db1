//! The reactor's ear: what the keeper tells of children, and of binaries that were replaced.

use crate::Error;
use crate::adoption::Entry;
use crate::birth::Starting;
use crate::child::{Child, token};
use crate::engine::{Lifecycle, Notice};
use crate::link::{Received, role};
use crate::process::{Os, WhileAlive};
use crate::reactor::{Due, LINK, RETRY, Reactor};
use crate::spec::Slot;
use outpost_keeper::{Event, NOT_ADOPTED, Request, Standing, What};
use outpost_sys::epoll::Interest;
use outpost_sys::pidfd::{Exit, Pidfd};
use outpost_sys::signal::Signal;
use outpost_sys::spawn::{Failure, Progress, Report};
use outpost_sys::{Errno, pidfd};
use std::os::fd::OwnedFd;

impl Reactor {
    pub(crate) fn listen(&mut self) {
        self.link.flush();
        if !self.unheld.is_empty() {
            self.give_all();
        }
        loop {
            match self.link.receive() {
                Received::Event(event, fds) => self.hear(event, fds),
                Received::Nothing => break,
                Received::Closed => return self.keeper_died(),
            }
        }
    }

    /// What could not be sent is sent when the keeper has read.
    pub(crate) fn watch_link(&mut self) {
        if self.keeper_gone {
            return;
        }
        let wanted = if self.link.wants_room() { Interest::ReadWrite } else { Interest::Read };
        self.link_watch.set(&self.epoll, &self.link, LINK, Some(wanted));
    }

    /// Sees to it that a child is known that the keeper was asked for past us.
    fn settle(&mut self, slot: u64) {
        if !self.children.contains_key(&slot) {
            // Whoever asked says so before it lets go of this.
            drop(self.shared.keeper());
            while !self.children.contains_key(&slot)
                && let Ok(command) = self.commands.try_recv()
            {
                self.obey(command);
            }
        }
    }

    fn hear(&mut self, event: Event, fds: Vec<OwnedFd>) {
        if let Event::Entry { slot, pid, standing: Standing::Waiting, .. } = event {
            let os = fds.into_iter().next().map(|pidfd| os(pid, pidfd));
            let watch =
                |report: &Report| self.epoll.add(report, token(slot, role::REPORT), Interest::Read).is_ok();
            return self.shared.spares.manned(Slot(slot), os, self.link.socket(), watch);
        }
        if let Event::Entry { slot, .. } = event {
            self.settle(slot);
        }
        match event {
            Event::Entry { slot, pidfd, held, .. }
                if !self.children.contains_key(&slot) && fds.len() < held.len() + usize::from(pidfd) =>
            {
                self.miss_again(slot);
            }
            Event::Entry { slot, pid, standing, pidfd, held } if !self.children.contains_key(&slot) => {
                self.adopt_all(vec![Entry::new(slot, pid, standing, pidfd, &held, fds)]);
            }
            Event::Entry { slot, pid, standing, pidfd: true, .. }
                if fds.is_empty() && self.awaits_pidfd(slot, standing) =>
            {
                // No descriptor was free for it. Without one the process could neither be signalled nor handed over, so its
                // start is not confirmed yet.
                let child = self.children.get_mut(&slot);
                if let Some(starting) = child.and_then(|child| child.starting.as_mut()) {
                    starting.reported = Some(pid);
                }
                self.schedule(RETRY, Due::Resend(slot));
            }
            Event::Entry { slot, pid, standing, .. } => {
                self.miss_no_longer(slot);
                self.hear_of_child(slot, pid, standing, fds);
            }
            Event::TableEnd => {}
            Event::Retire => self.shared.notify(Notice::Retire),
            Event::Shutdown => self.shared.notify(Notice::Shutdown),
            Event::Reload => self.shared.notify(Notice::Reload),
            Event::Replaced(what) => self.replaced(what, Ok(())),
            Event::NotReplaced(what, errno) => self.replaced(what, Err(errno)),
        }
    }

    fn awaits_pidfd(&self, slot: u64, standing: Standing) -> bool {
        let unborn = |child: &Child| child.process.inner.os.get().is_none();
        matches!(standing, Standing::Starting | Standing::Running)
            && self.children.get(&slot).is_some_and(unborn)
    }

    fn hear_of_child(&mut self, slot: u64, pid: i32, standing: Standing, fds: Vec<OwnedFd>) {
        if let Some(pidfd) = fds.into_iter().next() {
            self.begun(slot, pid, pidfd);
        }
        match standing {
            Standing::Waiting | Standing::Starting => {}
            Standing::Running => self.started(slot),
            Standing::Ended(exit) => {
                let progress = self.children.get_mut(&slot).map(Child::look_at_report);
                if let Some(Progress::Failed(failure)) = progress {
                    return self.failed(slot, failure);
                }
                if self.awaits_pidfd(slot, Standing::Running) {
                    // It ended before its pidfd could be received: it is described all the same.
                    self.record_start(slot);
                }
                // Often the end is reported with the start. A client that waits for that is woken once.
                let starting = self.children.get_mut(&slot).and_then(Child::take_executed);
                self.exited(slot, exit);
                self.confirm(slot, starting);
            }
            Standing::Failed(failure) => self.failed(slot, failure),
        }
    }

    /// Somebody who was told to become a child has something to say, or has ended.
    pub(crate) fn hear_report(&mut self, slot: u64) {
        self.settle(slot);
        match self.children.get_mut(&slot).map(Child::look_at_report) {
            Some(Progress::Executed) => self.started(slot),
            // One who has failed ends, and that is waited for.
            Some(Progress::Failed(_) | Progress::Pending) => {}
            None => {
                self.shared.spares.lost(Slot(slot));
                self.man_spares();
            }
        }
    }

    fn failed(&mut self, slot: u64, failure: Failure) {
        let runs = |child: &Child| child.process.inner.os.get().is_some();
        if failure == NOT_ADOPTED && self.children.get(&slot).is_some_and(runs) {
            self.link.send(Request::Forget { slot }, Vec::new());
            self.unheld.insert(slot);
            return self.schedule(RETRY, Due::Give);
        }
        let confirmed = |child: &&Child| child.starting.is_none();
        if let Some(child) = self.children.get(&slot).filter(confirmed) {
            // The keeper does not know a process that has executed. Its record stays.
            tracing::error!(process = %Slot(slot), ?failure, "the keeper lost a running process; killing it");
            if let Some(pidfd) = child.process.inner.os.get().and_then(|os| os.pidfd.get()) {
                let _gone_already = pidfd::signal(&*pidfd, Signal::KILL);
            }
            return self.exited(slot, Exit::UNKNOWN);
        }
        self.link.send(Request::Forget { slot }, Vec::new());
        if let Some(mut child) = self.children.remove(&slot) {
            // Before it is told, so that the key is free again for who hears of it.
            self.abandon(&child.process);
            let program = child.process.inner.description.program.clone();
            if let Some(starting) = child.starting.take() {
                let _gone = starting.reply.send(Err(Error::Start { program, failure }));
            }
        }
    }

    pub(crate) fn replaced(&mut self, what: What, outcome: std::result::Result<(), Errno>) {
        tracing::info!(?what, ?outcome, "replacement");
        if let Some(reply) = self.replacing.take() {
            let _gone = reply.send(outcome);
        }
    }

    fn begun(&mut self, slot: u64, pid: i32, pidfd: OwnedFd) {
        let unborn = |child: &&Child| child.process.inner.os.get().is_none();
        if let Some(child) = self.children.get(&slot).filter(unborn) {
            let _set_once = child.process.inner.os.set(os(pid, pidfd));
            self.record_start(slot);
            self.kill_if_forgotten(slot);
        }
    }

    /// Records a start, again and again until that succeeds: without its record the next worker would not know the process.
    pub(crate) fn record_start(&mut self, slot: u64) {
        let Some(child) = self.children.get_mut(&slot) else { return };
        // The keeper first: a process that is described here and not known there would be taken to be lost.
        let held = match child.enlist_due {
            true => child.enlisting().and_then(|(request, fds)| self.link.pass(request, &fds)),
            false => Ok(()),
        };
        child.enlist_due = held.is_err();
        let held = held.map_err(|errno| Error::io("pass", "descriptors to the keeper", errno));
        let recorded = held.and_then(|()| child.record_start());
        let is_new = recorded.is_err() && !child.start_unrecorded;
        child.start_unrecorded = recorded.is_err();
        if let Err(error) = recorded {
            if is_new {
                tracing::error!(process = %child.process.slot(), %error, "a start cannot be recorded; trying again");
                child.show_stall(&error);
            }
            child.publish();
            return self.schedule(RETRY, Due::Record(slot));
        }
        if child.starting.as_ref().is_some_and(|starting| starting.has_executed) {
            self.started(slot);
        }
    }

    /// The child has executed its program.
    pub(crate) fn started(&mut self, slot: u64) {
        let Some(child) = self.children.get_mut(&slot) else { return };
        let starting = child.take_executed();
        child.publish();
        child.rewatch(&self.epoll);
        self.confirm(slot, starting);
    }

    /// Tells who asked for a process that it has been started.
    fn confirm(&mut self, slot: u64, starting: Option<Starting>) {
        if let Some(starting) = starting {
            let loser = self.shared.table().claim(Slot(slot));
            if let Some(loser) = loser {
                self.forget(loser.slot());
            }
            let _gone = starting.reply.send(Ok(()));
            // While it runs is the time: who starts one process after the other leaves none else.
            if matches!(self.lifecycle, Lifecycle::Daemon { .. }) && self.shared.spares.is_unmanned() {
                self.link.send_now(Request::Muster, &[]);
            }
        }
    }
}

pub(crate) fn os(pid: i32, pidfd: OwnedFd) -> Os {
    let pidfd = Pidfd::received(pid, pidfd);
    let start_ticks = pidfd.identity().map_or(0, |identity| identity.start_ticks());
    Os { pid, pidfd: WhileAlive::new(Some(pidfd)), start_ticks }
}
