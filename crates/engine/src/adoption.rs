//! Adoption: a new worker takes over the processes that the keeper holds, as far as its resources allow.

use crate::child::{Child, Output, Source, Watch, stream_index};
use crate::descriptors;
use crate::input::{Input, Target};
use crate::link::{Link, Received, role};
use crate::process::{Inner, Os, Process, Progress, Status, WhileAlive};
use crate::reactor::{Due, RETRY, Reactor};
use crate::readers::Readers;
use crate::shared::Shared;
use crate::spec::Slot;
use crate::store::{Description, Recalled};
use crate::{Error, Result};
use outpost_journal::{Journal, Stream, Writer};
use outpost_keeper::{Event, KEPT, LINK_VERSION, OWN_SLOT, Request, Roles, Standing};
use outpost_sys::epoll::wait_readable;
use outpost_sys::pidfd::{Exit, Pidfd};
use outpost_sys::pipe::Pipe;
use outpost_sys::spawn::{Failure, Step};
use outpost_sys::{Errno, file};
use std::collections::{BTreeSet, HashMap};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// How long to wait before another attempt to take over a process.
const ADOPT_RETRY: Duration = Duration::from_secs(1);

/// The keeper answers a new worker at once, or something is badly wrong.
const TABLE_PATIENCE: Duration = Duration::from_secs(10);

/// The keeper's reply when it is to hold descriptors for a child that it does not know. Such a child may have executed.
const UNKNOWN_TO_KEEPER: Standing =
    Standing::Failed(Failure { step: Step::Gate, errno: Errno::CHILD, operation: 0 });

/// An entry of the keeper's table with its descriptors.
pub(crate) struct Entry {
    pub(crate) slot: u64,
    pub(crate) pid: i32,
    pub(crate) standing: Standing,
    pub(crate) pidfd: Option<Pidfd>,
    pub(crate) held: HashMap<u8, OwnedFd>,
}

/// What an adopted process has on disk, opened.
struct Record {
    description: Description,
    writer: Writer,
    /// A copy of the terminal's master for the handle.
    master: Option<OwnedFd>,
    input: Input,
    /// A description of the stdin log that the keeper does not hold yet.
    unheld: Option<OwnedFd>,
}

/// The keeper's table, as far as there are descriptors for it.
#[derive(Default)]
pub(crate) struct ReceivedTable {
    pub(crate) entries: Vec<Entry>,
    /// Slots whose descriptors did not fit. The keeper holds them, and is asked again as descriptors come free.
    pub(crate) missing: BTreeSet<u64>,
    received: usize,
}

impl ReceivedTable {
    fn take(&mut self, entry: Entry, expected: usize) {
        let got = entry.descriptors();
        // An adopted process opens its index, and mostly a segment.
        let fits = self.received.saturating_add(got + 2) <= descriptors::for_processes();
        match got == expected && (fits || entry.slot == OWN_SLOT || entry.slot & KEPT != 0) {
            true => {
                self.received += got + 2;
                self.entries.push(entry);
            }
            false => {
                self.missing.insert(entry.slot);
            }
        }
    }
}

/// Asks the keeper for the whole table.
pub(crate) fn receive_table(link: &mut Link) -> Result<ReceivedTable> {
    link.send(Request::Hello { version: LINK_VERSION }, Vec::new());
    let mut table = ReceivedTable::default();
    loop {
        match link.receive() {
            Received::Event(Event::TableEnd, _) => return Ok(table),
            Received::Event(Event::Entry { slot, pid, standing, pidfd, held }, fds) => {
                let expected = held.len() + usize::from(pidfd);
                table.take(Entry::new(slot, pid, standing, pidfd, &held, fds), expected);
            }
            // Said to a worker before us.
            Received::Event(..) => {}
            Received::Nothing => match wait_readable(&*link, TABLE_PATIENCE) {
                Ok(true) => {}
                Ok(false) => return Err(Error::io("receive", "the keeper's table", Errno::TIMEDOUT)),
                Err(errno) => return Err(Error::io("receive", "the keeper's table", errno)),
            },
            // It died in the middle. What it has sent us is not lost if we go on with it; what it has not sent is.
            Received::Closed if !table.entries.is_empty() => {
                tracing::error!(
                    entries = table.entries.len(),
                    "the keeper died while it handed its table over"
                );
                return Ok(table);
            }
            Received::Closed => return Err(Error::io("receive", "the keeper's table", Errno::PIPE)),
        }
    }
}

/// Makes the handle of a process.
pub(crate) fn handle(
    shared: &Arc<Shared>,
    slot: Slot,
    description: Description,
    journal: Arc<Journal>,
    master: Option<OwnedFd>,
    status: Status,
) -> Process {
    let progress =
        Progress { last_seq: journal.last_seq(), status, stalled: false, stdout_ended: false, gone: false };
    Process {
        inner: Arc::new(Inner {
            slot,
            description,
            journal,
            os: OnceLock::new(),
            master: WhileAlive::new(master),
            progress: watch::Sender::new(progress),
            stdin_accepted: AtomicU64::new(0),
            readers: Readers::new(),
            ended_ms: AtomicU64::new(0),
            forgotten: AtomicBool::new(false),
            cgroup_left: AtomicBool::new(false),
            is_description_synced: AtomicBool::new(false),
            shared: shared.clone(),
        }),
    }
}

impl Reactor {
    /// Takes over what the keeper has kept while there was no worker.
    pub(crate) fn adopt_all(&mut self, entries: Vec<Entry>) {
        for entry in entries {
            let slot = entry.slot;
            if slot == OWN_SLOT {
                self.own.adopt(entry.held);
                continue;
            }
            if slot & KEPT != 0 {
                self.own.adopt_kept(slot, entry.held);
                continue;
            }
            self.adopt_or_retry(entry);
        }
    }

    /// Takes over one process. What stands in the way (no descriptors, no room on the disk) may go away, so a failure never
    /// costs the process: its descriptors are kept, and it waits at its full pipes until a later attempt succeeds.
    fn adopt_or_retry(&mut self, mut entry: Entry) {
        let slot = entry.slot;
        self.miss_no_longer(slot);
        if entry.standing == UNKNOWN_TO_KEEPER && self.has_start_record(Slot(slot)) {
            entry.standing = Standing::Ended(Exit::UNKNOWN);
        }
        if let Standing::Failed(_) = entry.standing {
            self.link.send(Request::Forget { slot }, Vec::new());
            return self.shared.housekeeping.remove_slot(Slot(slot));
        }
        match self.open_record(&entry) {
            Ok(Some(record)) => self.adopt(entry, record),
            // No client has a confirmation of this start, and one that asks again must not get a second process.
            Ok(None) => {
                tracing::warn!(process = %Slot(slot), "a start that was not confirmed is undone");
                let kill = Request::Signal { slot, signal: crate::Signal::KILL, group: true };
                self.link.send(kill, Vec::new());
                self.link.send(Request::Forget { slot }, Vec::new());
                self.shared.housekeeping.remove_slot(Slot(slot));
            }
            Err(error) => {
                tracing::error!(process = %Slot(slot), %error, "a process cannot be taken over yet; trying again");
                self.unadopted.insert(slot, entry);
                self.schedule(ADOPT_RETRY, Due::Adopt(slot));
            }
        }
    }

    /// Has the keeper send a process again for which there were no descriptors. One at a time, and only while those stay free
    /// that clients need: without them no client could end a process.
    pub(crate) fn ask_for_missing(&mut self) {
        self.missing_due = false;
        if !self.resent.is_empty() {
            return;
        }
        if !descriptors::are_left(&self.nowhere) {
            return self.look_for_missing(ADOPT_RETRY);
        }
        if let Some(slot) = self.missing.pop_first() {
            self.resent.insert(slot);
            self.link.send(Request::Resend { slot }, Vec::new());
        }
    }

    /// Has processes asked for that are still missing.
    pub(crate) fn look_for_missing(&mut self, after: Duration) {
        if !self.missing.is_empty() && !self.missing_due {
            self.missing_due = true;
            self.schedule(after, Due::Missing);
        }
    }

    /// The keeper has sent a process.
    pub(crate) fn miss_no_longer(&mut self, slot: u64) {
        self.missing.remove(&slot);
        if self.resent.remove(&slot) {
            self.look_for_missing(Duration::ZERO);
        }
    }

    /// The descriptors of a process did not fit again.
    pub(crate) fn miss_again(&mut self, slot: u64) {
        self.resent.remove(&slot);
        self.missing.insert(slot);
        self.look_for_missing(ADOPT_RETRY);
    }

    /// Lets lookups go on that wait for processes which could not be taken over yet.
    pub(crate) fn publish_adoption(&self) {
        let untaken = self.missing.len() + self.unadopted.len() + self.resent.len();
        self.shared.lacks.send_if_modified(|lacks| std::mem::replace(&mut lacks.untaken, untaken) != untaken);
        let adopted = untaken == 0;
        self.shared.adopted.send_if_modified(|before| std::mem::replace(before, adopted) != adopted);
    }

    /// Notes that a process cannot be taken over before there are more descriptors.
    pub(crate) fn lack_descriptors(&mut self, slots: BTreeSet<u64>) {
        if slots.is_empty() {
            return;
        }
        tracing::error!(
            processes = slots.len(),
            "too few descriptors to take over every process; they run on, and are taken over as descriptors come free"
        );
        self.missing.extend(slots);
        self.look_for_missing(ADOPT_RETRY);
    }

    /// Tries again to take over a process.
    pub(crate) fn retry_adoption(&mut self, slot: u64) {
        if let Some(entry) = self.unadopted.remove(&slot) {
            self.adopt_or_retry(entry);
        }
    }

    /// Everything of an adoption that can fail. Takes nothing from the entry. `None` when the process has no description: it
    /// is written before a start is confirmed.
    fn open_record(&self, entry: &Entry) -> Result<Option<Record>> {
        let slot = Slot(entry.slot);
        let copy = |role: u8| {
            let copied = entry.held.get(&role).map(file::duplicate).transpose();
            copied.map_err(|errno| Error::io("duplicate", "a descriptor of a process", errno))
        };
        if !self.shared.store.is_described(slot)? {
            return Ok(None);
        }
        let description = match self.shared.store.recall(slot)? {
            Recalled::Described(description) => *description,
            // It was written, and is damaged now.
            Recalled::Lost | Recalled::Unused => Description::lost(slot),
        };
        let dir = self.shared.store.dir(slot);
        let writer = Writer::recover(&dir, self.shared.journal_bytes_max(&description))?;
        let (input, unheld) = Input::resume(Target::Closed, dir.join("stdin"), copy(role::STDIN_LOG)?)?;
        Ok(Some(Record { description, writer, master: copy(role::MASTER)?, input, unheld }))
    }

    fn adopt(&mut self, mut entry: Entry, record: Record) {
        let slot = Slot(entry.slot);
        let Record { description, mut writer, master: master_of_handle, mut input, unheld } = record;
        // It was reaped before anybody could see which it was.
        if let (0, Some((pid, _))) = (entry.pid, writer.start()) {
            entry.pid = pid;
        }
        let start_ticks = match writer.start() {
            Some((_, ticks)) => ticks,
            None => {
                let identity = entry.pidfd.as_ref().and_then(Pidfd::identity);
                identity.map_or(0, |identity| identity.start_ticks())
            }
        };
        let start_unrecorded = writer.started(entry.pid, start_ticks).is_err();
        let master = entry.held.remove(&role::MASTER);
        let status = writer.exit().map_or(Status::Running, Status::Finished);
        let journal = writer.journal().clone();
        let process = handle(&self.shared, slot, description, journal, master_of_handle, status);
        if let Some(pidfd) = entry.pidfd.take() {
            let _set_once =
                process.inner.os.set(Os { pid: entry.pid, pidfd: WhileAlive::new(Some(pidfd)), start_ticks });
        }
        input.target = match (
            entry.held.remove(&role::STDIN),
            entry.pipe(role::TO_MASTER_READ, role::TO_MASTER_WRITE),
        ) {
            (Some(pipe), _) => Target::Pipe(pipe),
            (None, Some(pipe)) if master.is_some() => Target::Terminal(pipe),
            _ => Target::Closed,
        };
        if let Some(reader) = unheld {
            self.link.send(Request::Hold { slot: entry.slot, role: role::STDIN_LOG }, vec![reader]);
        }
        input.closing = writer.stdin_closed().is_some();
        let from_master = entry.pipe(role::FROM_MASTER_READ, role::FROM_MASTER_WRITE).map(Source::Terminal);
        let stdout = from_master.or_else(|| entry.held.remove(&role::STDOUT).map(Source::Pipe));
        let stderr = entry.held.remove(&role::STDERR).map(Source::Pipe);
        let now = Instant::now();
        let child = Child {
            process: process.clone(),
            writer,
            outputs: [stdout.map(Output::new), stderr.map(Output::new)],
            master,
            master_watch: Watch::default(),
            input,
            input_watch: Watch::default(),
            input_blocked: false,
            starting: None,
            undescribed: None,
            exit: None,
            exit_seen: now,
            last_byte: now,
            stalled: false,
            start_unrecorded,
            enlist_due: false,
        };
        child.publish();
        self.children.insert(entry.slot, child);
        if start_unrecorded {
            self.schedule(RETRY, Due::Record(entry.slot));
        }
        let loser = self.shared.table().insert(process.clone());
        if let Some(loser) = loser {
            self.forget(loser.slot());
        }
        self.resume(entry.slot, entry.standing);
        crate::kill::finish_kill_tree(&process);
    }

    fn has_start_record(&self, slot: Slot) -> bool {
        let dir = self.shared.store.dir(slot);
        let writer = Writer::recover(&dir, self.shared.config().process_bytes_max);
        writer.is_ok_and(|writer| writer.start().is_some())
    }

    /// Goes on with everything that may have been under way when the worker before us died.
    fn resume(&mut self, slot: u64, standing: Standing) {
        if let Some(child) = self.children.get_mut(&slot) {
            child.rewatch(&self.epoll);
        }
        // A private pipe may hold what a terminal wrote, and nothing else would wake us for it.
        for stream in [Stream::Stdout, Stream::Stderr] {
            let present = |child: &Child| child.outputs[stream_index(stream)].is_some();
            if self.children.get(&slot).is_some_and(present) {
                self.pump(slot, stream);
            }
        }
        self.deliver(slot);
        if standing != Standing::Starting {
            self.started(slot);
        }
        if let Standing::Ended(exit) = standing {
            self.ended_before(slot, exit);
        }
    }

    fn ended_before(&mut self, slot: u64, exit: Exit) {
        if let Some(child) = self.children.get_mut(&slot) {
            child.exit = Some(exit);
            child.exit_seen = Instant::now();
            let _released_with_the_rest = child.end_input(&self.epoll);
            child.publish();
            child.rewatch(&self.epoll);
        }
        self.drain(slot);
    }
}

impl Entry {
    pub(crate) fn new(
        slot: u64,
        pid: i32,
        standing: Standing,
        pidfd: bool,
        held: &Roles,
        fds: Vec<OwnedFd>,
    ) -> Entry {
        let mut fds = fds.into_iter();
        let pidfd = if pidfd { fds.next() } else { None };
        let pidfd = pidfd.map(|fd| Pidfd::received(pid, fd));
        Entry { slot, pid, standing, pidfd, held: held.iter().zip(fds).collect() }
    }

    fn descriptors(&self) -> usize {
        self.held.len() + usize::from(self.pidfd.is_some())
    }

    fn pipe(&mut self, read: u8, write: u8) -> Option<Pipe> {
        Some(Pipe { read: self.held.remove(&read)?, write: self.held.remove(&write)? })
    }
}
