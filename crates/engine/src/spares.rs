//! Places for processes to come, made before anybody asks: who then asks waits for no disk and for no other thread.
//!
//! A spare is a directory with an empty description and an empty index, pipes, a cgroup, and mostly a child that waits in
//! there to be told what to become. Nothing is written into it before there is a process. One that is found after a
//! restart has an empty description and is removed.

use crate::process::Os;
use crate::reactor::Command;
use crate::shared::Shared;
use crate::spec::Slot;
use crate::starting::Standard;
use crate::store::{DESCRIPTION_RESERVED_BYTES, reserve};
use crate::{Result, descriptors};
use outpost_journal::Writer;
use outpost_sys::spawn::Report;
use outpost_sys::{Errno, epoll, limits, message};
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// With so few left more are made.
const FEW: usize = 3;

/// A place for one process.
pub(crate) struct Spare {
    pub(crate) slot: Slot,
    pub(crate) dir: PathBuf,
    pub(crate) writer: Writer,
    /// The file for its description.
    pub(crate) description: OwnedFd,
    pub(crate) stdio: Standard,
    pub(crate) cgroup: Option<OwnedFd>,
    pub(crate) manning: Manning,
}

/// Who waits in a place.
#[derive(Default)]
pub(crate) enum Manning {
    #[default]
    Nobody,
    /// The keeper has been asked for one, who will listen to the first and report to the second.
    Asked(OwnedFd, Report),
    Manned(Recruit),
}

/// A child that waits to be told what to become.
pub(crate) struct Recruit {
    pub(crate) orders: OwnedFd,
    /// The reactor watches it.
    pub(crate) report: Report,
    pub(crate) os: Os,
    /// The link to the keeper that forked it: no other one knows of it.
    pub(crate) keeper: Arc<OwnedFd>,
}

impl Manning {
    /// Who can be told now. One who is still to come ends when it hears nothing.
    pub(crate) fn recruit(self) -> Option<Recruit> {
        match self {
            Manning::Manned(recruit) => Some(recruit),
            Manning::Nobody | Manning::Asked(..) => None,
        }
    }
}

impl Recruit {
    /// Whether it can still become something, under this keeper.
    pub(crate) fn serves(&self, keeper: &Arc<OwnedFd>) -> bool {
        Arc::ptr_eq(&self.keeper, keeper)
            && self.os.pidfd.get().is_some_and(|pidfd| !epoll::is_readable(&*pidfd))
    }
}

pub(crate) struct Spares {
    /// In the order of their slots.
    ready: Mutex<VecDeque<Spare>>,
    /// No process has a greater slot. Of two with one key the greater slot is the younger, so none is used below this.
    used: AtomicU64,
    wanted: SyncSender<()>,
    /// No more are made. Held while one is, so that who closes knows that nobody is at it.
    closed: Mutex<bool>,
}

impl Spares {
    /// None yet, and what has to be given to [`keep`].
    pub(crate) fn new() -> (Spares, Receiver<()>) {
        let (wanted, wishes) = sync_channel(1);
        (
            Spares { ready: Mutex::default(), used: AtomicU64::new(0), wanted, closed: Mutex::default() },
            wishes,
        )
    }

    fn ready(&self) -> MutexGuard<'_, VecDeque<Spare>> {
        self.ready.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn closed(&self) -> MutexGuard<'_, bool> {
        self.closed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One that is ready, if there is one.
    pub(crate) fn take(&self) -> Option<Spare> {
        let mut ready = self.ready();
        let used = self.used.load(Ordering::Acquire);
        let passed_over = ready.iter().take_while(|spare| spare.slot.0 <= used).count();
        let spare = ready.remove(passed_over);
        if let Some(spare) = &spare {
            self.used.fetch_max(spare.slot.0, Ordering::AcqRel);
        }
        spare
    }

    /// Has more made if few are left. Who has taken one says so when nobody waits for it any more.
    pub(crate) fn restock(&self) {
        if self.ready().len() <= FEW {
            let _wanted_already = self.wanted.try_send(());
        }
    }

    /// Has children wait where nobody does. `recruit` asks the keeper for one, who is to have these descriptors; it is called
    /// while nobody can take the place, so that the keeper hears of that first.
    pub(crate) fn man(&self, mut recruit: impl FnMut(Slot, &[BorrowedFd<'_>]) -> bool) {
        let used = self.used.load(Ordering::Acquire);
        for spare in self.ready().iter_mut().filter(|spare| spare.slot.0 > used) {
            if let Manning::Nobody = spare.manning
                && let (Ok((orders, its_orders)), Ok((report, its_report))) =
                    (message::pair(), Report::pair())
            {
                let fds = [&its_orders, &its_report].into_iter().chain(&spare.cgroup).map(AsFd::as_fd);
                if recruit(spare.slot, &fds.collect::<Vec<_>>()) {
                    spare.manning = Manning::Asked(orders, report);
                }
            }
        }
    }

    /// The keeper has forked the one that was asked for. `watch` sees to its report.
    pub(crate) fn manned(
        &self,
        slot: Slot,
        os: Option<Os>,
        keeper: Arc<OwnedFd>,
        watch: impl FnOnce(&Report) -> bool,
    ) {
        let mut ready = self.ready();
        let Some(spare) = ready.iter_mut().find(|spare| spare.slot == slot) else { return };
        spare.manning = match (std::mem::take(&mut spare.manning), os) {
            (Manning::Asked(orders, report), Some(os)) if watch(&report) => {
                Manning::Manned(Recruit { orders, report, os, keeper })
            }
            _ => Manning::Nobody,
        };
    }

    /// One who waited there has ended.
    pub(crate) fn lost(&self, slot: Slot) {
        let mut ready = self.ready();
        let spare = ready.iter_mut().find(|spare| spare.slot == slot);
        spare.into_iter().for_each(|spare| spare.manning = Manning::Nobody);
    }

    /// Whether nobody waits in those that are used next, though there are some to wait in.
    pub(crate) fn is_unmanned(&self) -> bool {
        let ready = self.ready();
        !ready.is_empty() && !ready.iter().any(|spare| matches!(spare.manning, Manning::Manned(_)))
    }

    /// Whether so few wait that the next but one to be started would find nobody.
    pub(crate) fn is_undermanned(&self) -> bool {
        let ready = self.ready();
        let manned = ready.iter().filter(|spare| matches!(spare.manning, Manning::Manned(_))).count();
        manned <= 1 && ready.iter().any(|spare| matches!(spare.manning, Manning::Asked(..)))
    }

    /// The keeper is gone, and nobody knows those who wait any more.
    pub(crate) fn unman(&self) {
        self.ready().iter_mut().for_each(|spare| spare.manning = Manning::Nobody);
    }

    /// Notes that a process has a slot that was none's spare.
    pub(crate) fn passed(&self, slot: Slot) {
        self.used.fetch_max(slot.0, Ordering::AcqRel);
    }
}

/// Makes spares as they are wanted, until the engine ends. Takes those back that others have passed over.
pub(crate) fn keep(engine: &Weak<Shared>, wishes: &Receiver<()>) {
    // Nobody waits for a spare: who finds none makes one. A start that is under way comes first.
    limits::lower_priority();
    while wishes.recv().is_ok() {
        let Some(shared) = engine.upgrade() else { return };
        while restock(&shared) {}
        shared.command_blocking(Command::Man);
    }
}

/// Makes at most one, so that who closes waits for no more than that. False when there is nothing more to do.
fn restock(shared: &Arc<Shared>) -> bool {
    let closed = shared.spares.closed();
    if *closed {
        return false;
    }
    let used = shared.spares.used.load(Ordering::Acquire);
    let passed_over: Vec<Spare> = {
        let mut ready = shared.spares.ready();
        let count = ready.iter().take_while(|spare| spare.slot.0 <= used).count();
        ready.drain(..count).collect()
    };
    passed_over.into_iter().for_each(|spare| leave(shared, spare));
    if shared.spares.ready().len() >= shared.config().spares_max {
        return false;
    }
    match make(shared) {
        Ok(spare) => shared.spares.ready().push_back(spare),
        // Who starts a process next will see for himself, and say so.
        Err(error) => {
            tracing::debug!(%error, "no place could be made for processes to come");
            return false;
        }
    }
    true
}

/// Removes those that are left, when the engine ends in order. Nothing is made or removed here after that.
pub(crate) fn clear(shared: &Shared) {
    *shared.spares.closed() = true;
    let left: Vec<Spare> = shared.spares.ready().drain(..).collect();
    left.into_iter().for_each(|spare| leave(shared, spare));
}

/// Removes a place. Who waits there is let go first: the reactor would hear of its end, and find nobody it belongs to.
fn leave(shared: &Shared, spare: Spare) {
    let slot = spare.slot;
    drop(spare);
    shared.vacate(slot);
}

/// Makes the place for one process.
pub(crate) fn make(shared: &Arc<Shared>) -> Result<Spare> {
    let slot = shared.next_slot();
    let made = make_in(shared, slot);
    if made.is_err() {
        shared.vacate(slot);
    }
    made
}

fn make_in(shared: &Arc<Shared>, slot: Slot) -> Result<Spare> {
    let io = |errno| crate::Error::io("make", "descriptors for a child", errno);
    let (dir, description) = shared.store.create(slot)?;
    if !descriptors::are_left(&description) {
        return Err(io(Errno::MFILE));
    }
    // A start in this slot then needs no more room on the disk for what must be written of it.
    reserve(&description, DESCRIPTION_RESERVED_BYTES)?;
    let writer = Writer::create(&dir, shared.config().process_bytes_max)?;
    let cgroup = match &shared.cgroups {
        Some(cgroups) => {
            let made = cgroups.group(&slot.to_string()).create();
            Some(made.map_err(|errno| crate::Error::io("create", "a cgroup", errno))?)
        }
        None => None,
    };
    let stdio = Standard::make().map_err(io)?;
    Ok(Spare { slot, dir, writer, description, stdio, cgroup, manning: Manning::Nobody })
}
