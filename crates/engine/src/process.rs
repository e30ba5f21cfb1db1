//! The handle of a process, and the requests that need no cooperation of it.

use crate::input::Offer;
use crate::kill::{self, KillReport, Ladder, Reach};
use crate::process_dir::Description;
use crate::reactor::Command;
use crate::readers::Readers;
use crate::shared::Shared;
use crate::spec::{Key, Slot};
use crate::{Error, Result, Subscription};
use outpost_journal::{Accepted, Journal};
use outpost_sys::cgroup::Group;
use outpost_sys::identity::{Identity, this_boot};
use outpost_sys::pidfd::{self, Exit, ExitCause, Pidfd};
use outpost_sys::pty::Size;
use outpost_sys::signal::Signal;
use outpost_sys::{Errno, procfs};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use tokio::sync::{oneshot, watch};

/// The state of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    Starting,
    Running,
    /// Reaped. Its last output may not be in the journal yet.
    Exited(Exit),
    /// The exit is recorded. No output follows.
    Finished(Exit),
}

impl Status {
    /// The exit status, if it has ended.
    pub fn exit(self) -> Option<Exit> {
        match self {
            Status::Exited(exit) | Status::Finished(exit) => Some(exit),
            Status::Starting | Status::Running => None,
        }
    }
}

/// The reason why an exit status is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitUnknown {
    /// The host restarted while the process ran. Output of its last seconds may be missing.
    HostRestarted,
    /// The record of the process was damaged, as by a power failure.
    RecordDamaged,
    /// The keeper died before the process ended.
    KeeperDied,
}

/// The published state of a process, for readers and waiters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Progress {
    pub(crate) last_seq: u64,
    pub(crate) status: Status,
    /// The disk has no space for its output.
    pub(crate) stalled: bool,
    /// Standard output is at EOF, and all of it is recorded.
    pub(crate) stdout_ended: bool,
    /// Dropped from the table.
    pub(crate) gone: bool,
}

/// A process in a list.
#[derive(Clone, Debug)]
pub struct Info {
    pub slot: Slot,
    pub key: Key,
    pub pid: i32,
    pub status: Status,
    /// The reason why the exit status is unknown.
    pub exit_unknown: Option<ExitUnknown>,
    pub arguments: Vec<String>,
    pub directory: Option<String>,
    pub terminal: bool,
    pub started_ms: u64,
    pub started_by: String,
    /// Resident memory: of the process; of its whole tree where that has a cgroup. Shared pages count once per mapping.
    pub rss_bytes: u64,
    /// CPU time of the process and of the children that it has reaped; of its whole tree where that has a cgroup.
    pub cpu_ms: u64,
    pub bytes_total: u64,
    pub bytes_kept: u64,
    pub first_seq: u64,
    pub last_seq: u64,
    pub stdin_accepted: u64,
    pub readers: usize,
    /// The process waits because the disk has no space for its output.
    pub stalled: bool,
}

/// A descriptor of a handle that is closed when the process has ended.
pub(crate) struct WhileAlive<T = OwnedFd>(Mutex<Option<Arc<T>>>);

impl<T> WhileAlive<T> {
    pub(crate) fn new(fd: Option<T>) -> WhileAlive<T> {
        WhileAlive(Mutex::new(fd.map(Arc::new)))
    }

    pub(crate) fn get(&self) -> Option<Arc<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn close(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

/// The kernel's identifiers of the process.
pub(crate) struct Os {
    pub(crate) pid: i32,
    pub(crate) pidfd: WhileAlive<Pidfd>,
    pub(crate) start_ticks: u64,
}

pub(crate) struct Inner {
    pub(crate) slot: Slot,
    pub(crate) description: Description,
    pub(crate) journal: Arc<Journal>,
    pub(crate) os: OnceLock<Os>,
    pub(crate) master: WhileAlive,
    pub(crate) progress: watch::Sender<Progress>,
    pub(crate) stdin_accepted: AtomicU64,
    pub(crate) readers: Readers,
    /// When the exit was recorded, in milliseconds since 1970; 0 before.
    pub(crate) ended_ms: AtomicU64,
    /// The record was dropped while the process was starting or running. It is killed, and erased when it has ended.
    pub(crate) forgotten: AtomicBool,
    /// Its cgroup was removed.
    pub(crate) cgroup_removed: AtomicBool,
    pub(crate) is_description_synced: AtomicBool,
    pub(crate) shared: Arc<Shared>,
}

/// A supervised process. Clones are handles of the same process. Dropping them does not end it.
#[derive(Clone)]
pub struct Process {
    pub(crate) inner: Arc<Inner>,
}

impl Process {
    pub fn slot(&self) -> Slot {
        self.inner.slot
    }

    pub fn key(&self) -> &Key {
        &self.inner.description.key
    }

    /// The pid; 0 when it is not known.
    pub fn pid(&self) -> i32 {
        self.inner.os.get().map_or(0, |os| os.pid)
    }

    /// The process has ended: closes the descriptors of its handles.
    pub(crate) fn close_fds(&self) {
        self.inner.master.close();
        if let Some(os) = self.inner.os.get() {
            os.pidfd.close();
        }
    }

    /// The identity of its first process; `None` when it is not known or is of another boot.
    pub(crate) fn leader(&self) -> Option<Identity> {
        let os = self.inner.os.get()?;
        // A process that the keeper holds is of this boot.
        let held = os.pidfd.get().map(|_| this_boot());
        let boot_id = held.unwrap_or(&self.inner.description.boot_id);
        Identity::recorded(boot_id, os.pid, os.start_ticks).ok()
    }

    /// Wall clock at the start, in milliseconds since 1970.
    pub fn started_ms(&self) -> u64 {
        self.inner.description.started_ms
    }

    pub(crate) fn ended_ms(&self) -> u64 {
        self.inner.ended_ms.load(Ordering::Relaxed)
    }

    pub(crate) fn set_ended_ms(&self, at_ms: u64) {
        self.inner.ended_ms.store(at_ms, Ordering::Relaxed);
    }

    pub fn status(&self) -> Status {
        self.inner.progress.borrow().status
    }

    /// Whether its output waits for room on the disk.
    pub fn is_stalled(&self) -> bool {
        self.inner.progress.borrow().stalled
    }

    /// The lowest and the highest sequence number that can be read; both are 0 without output.
    pub fn sequence(&self) -> (u64, u64) {
        (self.inner.journal.first_seq(), self.inner.journal.last_seq())
    }

    /// The number of accepted bytes of stdin.
    pub fn stdin_accepted(&self) -> u64 {
        self.inner.stdin_accepted.load(Ordering::Acquire)
    }

    /// Reads all output after the sequence number `after`, and follows the process. 0 reads from the beginning.
    pub fn subscribe(&self, after: u64) -> Subscription {
        Subscription::new(self.clone(), after, false)
    }

    /// The same for a reader that the process never waits for. Output may be dropped before it is read.
    pub fn observe(&self, after: u64) -> Subscription {
        Subscription::new(self.clone(), after, true)
    }

    /// The sequence number after which the last `bytes` bytes of output begin.
    pub async fn tail(&self, bytes: u64) -> Result<u64> {
        let journal = self.inner.journal.clone();
        let find = move || outpost_journal::Cursor::tail(journal, bytes);
        let cursor = tokio::task::spawn_blocking(find).await.map_err(|_| Error::Stopped)??;
        Ok(cursor.next_seq() - 1)
    }

    /// Accepts bytes of stdin from `offset` on, or at the end. Accepted bytes are in the log and are delivered exactly
    /// once, also if the worker or the keeper dies.
    pub async fn write_stdin(&self, offset: Option<u64>, data: impl Into<Arc<Vec<u8>>>) -> Result<Accepted> {
        self.write_stdin_up_to(self.inner.shared.config().stdin_waiting_max, offset, data).await
    }

    /// The same with another limit on the bytes that wait in the log for a child that does not read.
    pub async fn write_stdin_up_to(
        &self,
        waiting_max: u64,
        offset: Option<u64>,
        data: impl Into<Arc<Vec<u8>>>,
    ) -> Result<Accepted> {
        let (slot, data) = (self.inner.slot, data.into());
        let (reply, answer) = oneshot::channel();
        self.inner
            .shared
            .command(Command::Stdin { slot, offer: Offer::Bytes { offset, data, waiting_max, reply } })
            .await?;
        answer.await.map_err(|_| Error::Stopped)?
    }

    /// Waits until this many bytes of stdin from `from` on would be accepted, or the process has ended.
    pub async fn stdin_room(&self, from: u64, bytes: u64) -> Result<()> {
        let until = from.saturating_add(bytes.min(self.inner.shared.config().stdin_waiting_max));
        let (reply, answer) = oneshot::channel();
        self.inner.shared.command(Command::StdinRoom { slot: self.inner.slot, until, reply }).await?;
        answer.await.map_err(|_| Error::Stopped)
    }

    /// Closes stdin after the accepted bytes. On a terminal, sends the end-of-file character.
    pub async fn close_stdin(&self) -> Result<()> {
        let (reply, answer) = oneshot::channel();
        self.inner
            .shared
            .command(Command::Stdin { slot: self.inner.slot, offer: Offer::Close { reply } })
            .await?;
        answer.await.map_err(|_| Error::Stopped)?
    }

    /// Sets the size of the terminal.
    pub fn resize(&self, size: Size) -> Result<()> {
        let master = self.inner.master.get().ok_or(Error::NoTerminal)?;
        outpost_sys::pty::resize(master, size).map_err(|errno| Error::io("resize", "the terminal", errno))
    }

    /// The size of its terminal.
    pub fn size(&self) -> Option<Size> {
        outpost_sys::pty::size(self.inner.master.get()?).ok()
    }

    /// Sends a signal. A process that was reaped gets none.
    pub async fn signal(&self, signal: Signal, reach: Reach) -> Result<()> {
        let alive = self.inner.os.get().filter(|_| self.status().exit().is_none());
        let Some(pidfd) = alive.and_then(|os| os.pidfd.get()) else {
            return Err(Error::NotRunning);
        };
        let sent = match reach {
            Reach::Leader => pidfd::signal(pidfd, signal),
            Reach::Group => pidfd::signal_group(pidfd, signal),
            Reach::Tree => return kill::signal_tree(self, signal).await,
        };
        match sent {
            Ok(()) => Ok(()),
            Err(Errno::SRCH) => Err(Error::NotRunning),
            // Before Linux 6.9 only the keeper can signal the group safely, since it reaps the leader.
            Err(Errno::INVAL) => {
                self.inner.shared.command(Command::SignalGroup { slot: self.inner.slot, signal }).await
            }
            Err(errno) => Err(Error::io("signal", format!("pid {}", self.pid()), errno)),
        }
    }

    /// Kills the process and all its descendants, also after its own end. Returns the number of survivors.
    pub async fn kill_tree(&self) -> Result<usize> {
        kill::kill_tree(self).await
    }

    /// Ends the process by a signal, and by SIGKILL to its tree if it does not end.
    pub async fn kill_and_wait(&self, ladder: Ladder) -> Result<KillReport> {
        kill::escalate(self, ladder).await
    }

    /// Waits until the process was reaped.
    pub async fn exited(&self) -> Result<Exit> {
        let mut progress = self.inner.progress.subscribe();
        let reached = progress.wait_for(|progress| progress.gone || progress.status.exit().is_some()).await;
        reached.map_err(|_| Error::Gone)?.status.exit().ok_or(Error::Gone)
    }

    /// Waits until standard output is at EOF, which may be long before the exit.
    pub async fn stdout_ended(&self) -> Result<()> {
        let mut progress = self.inner.progress.subscribe();
        let ended = |progress: &Progress| progress.gone || progress.stdout_ended;
        progress.wait_for(ended).await.map(|_| ()).map_err(|_| Error::Gone)
    }

    /// Waits until the exit is recorded, after all output.
    pub async fn finished(&self) -> Result<Exit> {
        let mut progress = self.inner.progress.subscribe();
        let finished = |progress: &Progress| progress.gone || matches!(progress.status, Status::Finished(_));
        let reached = progress.wait_for(finished).await;
        reached.map_err(|_| Error::Gone)?.status.exit().ok_or(Error::Gone)
    }

    /// Drops the record of an ended process.
    pub async fn forget(&self) -> Result<()> {
        if self.status().exit().is_none() {
            return Err(Error::Busy);
        }
        self.inner.shared.command(Command::Forget { slot: self.inner.slot }).await
    }

    fn group(&self) -> Option<Group> {
        self.inner.shared.cgroups.as_ref().map(|groups| groups.group(&self.slot().to_string()))
    }

    fn rss_bytes(&self, stat: procfs::Stat) -> u64 {
        let members = self.group().map(|group| group.members()).unwrap_or_default();
        let others = members.into_iter().filter(|pid| *pid != stat.pid).filter_map(procfs::stat);
        others.chain([stat]).map(|stat| stat.rss_pages * procfs::page_size()).sum()
    }

    fn cpu_ms(&self, status: Status, stat: Option<procfs::Stat>) -> u64 {
        if let Some(exit) = status.exit() {
            return u64::from(exit.user_ms) + u64::from(exit.system_ms);
        }
        let tree = self.group().and_then(|group| group.cpu_ms());
        let ticks = stat.map_or(0, |stat| stat.cpu_ticks + stat.waited_ticks);
        tree.unwrap_or(ticks * 1000 / procfs::ticks_per_second())
    }

    fn exit_unknown(&self, status: Status) -> Option<ExitUnknown> {
        let description = &self.inner.description;
        status.exit().filter(|exit| exit.cause == ExitCause::Unknown).map(|_| {
            if description.is_of_another_boot() {
                ExitUnknown::HostRestarted
            } else if description.is_lost() {
                ExitUnknown::RecordDamaged
            } else {
                ExitUnknown::KeeperDied
            }
        })
    }

    pub fn info(&self) -> Info {
        let inner = &self.inner;
        let status = self.status();
        let stat = if status == Status::Running { procfs::stat(self.pid()) } else { None };
        let (first_seq, last_seq) = self.sequence();
        Info {
            slot: inner.slot,
            key: inner.description.key.clone(),
            pid: self.pid(),
            status,
            exit_unknown: self.exit_unknown(status),
            arguments: inner.description.arguments.clone(),
            directory: inner.description.directory.clone(),
            terminal: inner.description.terminal,
            started_ms: inner.description.started_ms,
            started_by: inner.description.started_by.clone(),
            rss_bytes: stat.map_or(0, |stat| self.rss_bytes(stat)),
            cpu_ms: self.cpu_ms(status, stat),
            bytes_total: inner.journal.bytes_total(),
            bytes_kept: inner.journal.bytes_kept(),
            first_seq,
            last_seq,
            stdin_accepted: self.stdin_accepted(),
            readers: inner.readers.count(),
            stalled: self.is_stalled(),
        }
    }
}
