//! Adoption: a new worker takes over the processes that the keeper holds, as far as its resources allow.

use crate::child::{Child, Output, Source, Watch, stream_index};
use crate::descriptors;
use crate::input::{Input, Target};
use crate::link::{KeeperLink, Received, role};
use crate::process::{Inner, Os, Process, Progress, Status, WhileAlive};
use crate::process_dir::{Description, Recalled};
use crate::reactor::{RETRY, Reactor};
use crate::readers::Readers;
use crate::shared::Shared;
use crate::spec::Slot;
use crate::timers::Due;
use crate::{Error, Result};
use outpost_journal::{Journal, Stream, Writer};
use outpost_keeper::{Event, FDS_ONLY, FdRoles, LINK_VERSION, OWN_SLOT, ProcessState, Request};
use outpost_sys::epoll::wait_readable;
use outpost_sys::pidfd::{Exit, Pidfd};
use outpost_sys::pipe::Pipe;
use outpost_sys::{Errno, file};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// The pause before another attempt to adopt a process.
const ADOPT_RETRY: Duration = Duration::from_secs(1);

/// The start of a worker fails if the keeper does not send its table within this time.
const TABLE_TIMEOUT: Duration = Duration::from_secs(10);

/// Processes of the keeper's table that this worker has not adopted yet.
#[derive(Default)]
pub(crate) struct Adoption {
    /// Processes whose record could not be opened.
    unadopted: BTreeMap<u64, ReceivedEntry>,
    /// Processes whose descriptors did not fit.
    missing: BTreeSet<u64>,
    /// Those of them that the keeper is to send again.
    resent: BTreeSet<u64>,
    /// `Due::Missing` is scheduled.
    missing_due: bool,
}

impl Adoption {
    /// Slots of received entries.
    pub(crate) fn slots(&self) -> impl Iterator<Item = u64> + '_ {
        self.unadopted.keys().copied()
    }

    pub(crate) fn entry(&self, slot: u64) -> Option<&ReceivedEntry> {
        self.unadopted.get(&slot)
    }

    /// Whether a received process lives.
    pub(crate) fn has_living(&self) -> bool {
        let lives =
            |entry: &ReceivedEntry| matches!(entry.state, ProcessState::Starting | ProcessState::Running);
        self.unadopted.values().any(lives)
    }

    fn len(&self) -> usize {
        self.missing.len() + self.unadopted.len() + self.resent.len()
    }
}

/// An entry of the keeper's table with its descriptors.
pub(crate) struct ReceivedEntry {
    pub(crate) slot: u64,
    pub(crate) pid: i32,
    pub(crate) state: ProcessState,
    pub(crate) pidfd: Option<Pidfd>,
    pub(crate) held: HashMap<u8, OwnedFd>,
}

/// The record of an adopted process on disk, opened.
struct Record {
    description: Description,
    writer: Writer,
    /// A copy of the terminal's master for the handle.
    master: Option<OwnedFd>,
    input: Input,
    /// An open file description of the stdin log that the keeper does not hold yet.
    unheld: Option<OwnedFd>,
}

/// The keeper's table, as far as its descriptors fit.
#[derive(Default)]
pub(crate) struct ReceivedTable {
    pub(crate) entries: Vec<ReceivedEntry>,
    /// Slots whose descriptors did not fit. The keeper holds them and sends them again as descriptors come free.
    pub(crate) missing: BTreeSet<u64>,
    received: usize,
}

impl ReceivedTable {
    fn take(&mut self, entry: ReceivedEntry, expected: usize) {
        let got = entry.descriptors();
        // An adopted process opens its index, and mostly a segment.
        let fits = self.received.saturating_add(got + 2) <= descriptors::for_processes();
        match got == expected && (fits || entry.slot == OWN_SLOT || entry.slot & FDS_ONLY != 0) {
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

/// Receives the keeper's table.
pub(crate) fn receive_table(link: &KeeperLink) -> Result<ReceivedTable> {
    let failed = |errno| Error::io("receive", "the keeper's table", errno);
    link.send(Request::Hello { version: LINK_VERSION }, Vec::new());
    let mut table = ReceivedTable::default();
    loop {
        match link.receive() {
            Received::Event(Event::TableEnd, _) => return Ok(table),
            Received::Event(Event::Entry { slot, pid, state, pidfd, held }, fds) => {
                let expected = held.len() + usize::from(pidfd);
                table.take(ReceivedEntry::new(slot, pid, state, pidfd, &held, fds), expected);
            }
            // Sent to the worker before.
            Received::Event(..) => {}
            Received::Nothing => {
                let socket = link.socket().ok_or(failed(Errno::PIPE))?;
                if !wait_readable(&*socket, TABLE_TIMEOUT).map_err(failed)? {
                    return Err(failed(Errno::TIMEDOUT));
                }
            }
            // The keeper died meanwhile. The received entries are handed to the next one; the others are lost.
            Received::Closed if !table.entries.is_empty() => {
                tracing::error!(entries = table.entries.len(), "the keeper died while it sent its table");
                return Ok(table);
            }
            Received::Closed => return Err(failed(Errno::PIPE)),
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
            cgroup_removed: AtomicBool::new(false),
            is_description_synced: AtomicBool::new(false),
            shared: shared.clone(),
        }),
    }
}

impl Reactor {
    /// Adopts processes and descriptors of the keeper's table.
    pub(crate) fn adopt_all(&mut self, entries: Vec<ReceivedEntry>) {
        for entry in entries {
            let slot = entry.slot;
            if slot == OWN_SLOT {
                self.daemon_fds.adopt(entry.held);
                continue;
            }
            if slot & FDS_ONLY != 0 {
                self.daemon_fds.adopt_kept(slot, entry.held);
                continue;
            }
            self.adopt_or_retry(entry);
        }
    }

    /// Adopts one process. The cause of a failure (no descriptors, no space on the disk) may pass. So the descriptors
    /// are kept, and the process waits at its full pipes until a later attempt succeeds.
    fn adopt_or_retry(&mut self, entry: ReceivedEntry) {
        let slot = entry.slot;
        self.no_longer_missing(slot);
        if let ProcessState::Failed(_) = entry.state {
            self.shared.link.send(Request::Forget { slot }, Vec::new());
            return self.shared.housekeeping.remove_slot(Slot(slot));
        }
        match self.open_record(&entry) {
            Ok(Some(record)) => self.adopt(entry, record),
            // The start was not confirmed to any client, and a client that repeats it must not get a second process.
            Ok(None) => {
                tracing::warn!(process = %Slot(slot), "killing a process whose start was not confirmed");
                let kill = Request::Signal { slot, signal: crate::Signal::KILL, group: true };
                self.shared.link.send(kill, Vec::new());
                self.shared.link.send(Request::Forget { slot }, Vec::new());
                self.shared.housekeeping.remove_slot(Slot(slot));
            }
            Err(error) => {
                tracing::error!(process = %Slot(slot), %error, "cannot adopt a process yet; retrying");
                self.adoption.unadopted.insert(slot, entry);
                self.schedule(ADOPT_RETRY, Due::Adopt(slot));
            }
        }
    }

    /// Has the keeper send a process again whose descriptors did not fit. One at a time, and only while enough
    /// descriptors stay free for clients: without them no client could end a process.
    pub(crate) fn ask_for_missing(&mut self) {
        self.adoption.missing_due = false;
        if !self.adoption.resent.is_empty() {
            return;
        }
        if !descriptors::are_left(self.pump.dev_null()) {
            return self.schedule_missing(ADOPT_RETRY);
        }
        if let Some(slot) = self.adoption.missing.pop_first() {
            self.adoption.resent.insert(slot);
            self.shared.link.send(Request::Resend { slot }, Vec::new());
        }
    }

    fn schedule_missing(&mut self, after: Duration) {
        if !self.adoption.missing.is_empty() && !self.adoption.missing_due {
            self.adoption.missing_due = true;
            self.schedule(after, Due::Missing);
        }
    }

    /// The keeper has sent a process.
    pub(crate) fn no_longer_missing(&mut self, slot: u64) {
        self.adoption.missing.remove(&slot);
        if self.adoption.resent.remove(&slot) {
            self.schedule_missing(Duration::ZERO);
        }
    }

    /// The descriptors of a process did not fit again.
    pub(crate) fn still_missing(&mut self, slot: u64) {
        self.adoption.resent.remove(&slot);
        self.adoption.missing.insert(slot);
        self.schedule_missing(ADOPT_RETRY);
    }

    /// Publishes how many processes are not adopted yet. Lookups wait for that.
    pub(crate) fn publish_adoption(&self) {
        let unadopted = self.adoption.len();
        self.shared
            .lacks
            .send_if_modified(|lacks| std::mem::replace(&mut lacks.unadopted, unadopted) != unadopted);
        let adopted = unadopted == 0;
        self.shared.adopted.send_if_modified(|before| std::mem::replace(before, adopted) != adopted);
    }

    /// Records processes whose descriptors did not fit.
    pub(crate) fn lack_descriptors(&mut self, slots: BTreeSet<u64>) {
        if slots.is_empty() {
            return;
        }
        tracing::error!(
            processes = slots.len(),
            "too few descriptors to adopt every process; they run on and are adopted as descriptors come free"
        );
        self.adoption.missing.extend(slots);
        self.schedule_missing(ADOPT_RETRY);
    }

    pub(crate) fn retry_adoption(&mut self, slot: u64) {
        if let Some(entry) = self.adoption.unadopted.remove(&slot) {
            self.adopt_or_retry(entry);
        }
    }

    /// Does everything of an adoption that can fail, and takes nothing from the entry. `None` when the process has no
    /// description, which is written before a start is confirmed.
    fn open_record(&self, entry: &ReceivedEntry) -> Result<Option<Record>> {
        let slot = Slot(entry.slot);
        let copy = |role: u8| {
            let copied = entry.held.get(&role).map(file::duplicate).transpose();
            copied.map_err(|errno| Error::io("duplicate", "a descriptor of a process", errno))
        };
        if !self.shared.process_dirs.is_described(slot)? {
            return Ok(None);
        }
        let description = match self.shared.process_dirs.recall(slot)? {
            Recalled::Described(description) => *description,
            // The description was written, and is damaged now.
            Recalled::Lost | Recalled::Unused => Description::lost(slot),
        };
        let dir = self.shared.process_dirs.dir(slot);
        let writer = Writer::recover(&dir, self.shared.journal_bytes_max(&description))?;
        let (input, unheld) = Input::resume(Target::Closed, dir.join("stdin"), copy(role::STDIN_LOG)?)?;
        Ok(Some(Record { description, writer, master: copy(role::MASTER)?, input, unheld }))
    }

    fn adopt(&mut self, mut entry: ReceivedEntry, record: Record) {
        let slot = Slot(entry.slot);
        let Record { description, mut writer, master: master_of_handle, mut input, unheld } = record;
        // Another process reaped it, so its pidfd has no pid any more.
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
            self.shared.link.send(Request::Hold { slot: entry.slot, role: role::STDIN_LOG }, vec![reader]);
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
            launch: None,
            unwritten_description: None,
            exit: None,
            exit_seen: now,
            last_byte: now,
            stalled: false,
            start_unrecorded,
        };
        child.publish();
        self.children.insert(entry.slot, child);
        if start_unrecorded {
            self.schedule(RETRY, Due::Record(entry.slot));
        }
        let replaced = self.shared.table().insert(process.clone());
        if let Some(replaced) = replaced {
            self.forget(replaced.slot());
        }
        self.resume(entry.slot, entry.state);
        crate::kill::finish_kill_tree(&process);
    }

    /// Resumes what the worker before may have left unfinished.
    fn resume(&mut self, slot: u64, state: ProcessState) {
        if let Some(child) = self.children.get_mut(&slot) {
            child.rewatch(&self.epoll);
        }
        // A private pipe may hold output of a terminal, and no event announces that.
        for stream in [Stream::Stdout, Stream::Stderr] {
            let present = |child: &Child| child.outputs[stream_index(stream)].is_some();
            if self.children.get(&slot).is_some_and(present) {
                self.pump(slot, stream);
            }
        }
        self.deliver_stdin(slot);
        if state != ProcessState::Starting {
            self.executed(slot);
        }
        if let ProcessState::Ended(exit) = state {
            self.ended_before_adoption(slot, exit);
        }
    }

    fn ended_before_adoption(&mut self, slot: u64, exit: Exit) {
        if let Some(child) = self.children.get_mut(&slot) {
            child.exit = Some(exit);
            child.exit_seen = Instant::now();
            let _released_with_the_others = child.end_input(&self.epoll);
            child.publish();
            child.rewatch(&self.epoll);
        }
        self.drain(slot);
    }
}

impl ReceivedEntry {
    pub(crate) fn new(
        slot: u64,
        pid: i32,
        state: ProcessState,
        pidfd: bool,
        held: &FdRoles,
        fds: Vec<OwnedFd>,
    ) -> ReceivedEntry {
        let mut fds = fds.into_iter();
        let pidfd = if pidfd { fds.next() } else { None };
        let pidfd = pidfd.map(|fd| Pidfd::received(pid, fd));
        ReceivedEntry { slot, pid, state, pidfd, held: held.iter().zip(fds).collect() }
    }

    fn descriptors(&self) -> usize {
        self.held.len() + usize::from(self.pidfd.is_some())
    }

    fn pipe(&mut self, read: u8, write: u8) -> Option<Pipe> {
        Some(Pipe { read: self.held.remove(&read)?, write: self.held.remove(&write)? })
    }
}
