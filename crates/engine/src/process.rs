//! The handle to a process, and what can be asked of it without its cooperation.

use crate::input::Offer;
use crate::kill::{self, KillReport, Ladder, Reach};
use crate::reactor::Command;
use crate::readers::Readers;
use crate::shared::Shared;
use crate::spec::{Key, Slot};
use crate::store::Description;
use crate::{Error, Result, Subscription};
use outpost_journal::{Accepted, Journal};
use outpost_sys::cgroup::Group;
use outpost_sys::identity::{Identity, this_boot};
use outpost_sys::pidfd::{self, Exit, How, Pidfd};
use outpost_sys::pty::Size;
use outpost_sys::signal::Signal;
use outpost_sys::{Errno, procfs};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use tokio::sync::{oneshot, watch};

/// How a process stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    Starting,
    Running,
    /// Reaped; its last output may still be on the way into the journal.
    Exited(Exit),
    /// The exit is recorded: nothing follows.
    Finished(Exit),
}

impl Status {
    /// How it ended, if it has.
    pub fn exit(self) -> Option<Exit> {
        match self {
            Status::Exited(exit) | Status::Finished(exit) => Some(exit),
            Status::Starting | Status::Running => None,
        }
    }
}

/// Why the exit status of a process is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitUnknown {
    /// The host restarted while the process ran. Output of its last seconds may be missing.
    HostRestarted,
    /// The record of the process was damaged, as by a power failure.
    RecordDamaged,
    /// The keeper did not live to see the end.
    KeeperDied,
}

/// What readers and waiters are woken for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Progress {
    pub(crate) last_seq: u64,
    pub(crate) status: Status,
    /// The disk has no room for its output.
    pub(crate) stalled: bool,
    /// Nobody has its standard output open any more, and all of that is recorded.
    pub(crate) stdout_ended: bool,
    /// Dropped from the table: there is nothing to wait for any more.
    pub(crate) gone: bool,
}

/// A process in numbers and words, for lists.
#[derive(Clone, Debug)]
pub struct Info {
    pub slot: Slot,
    pub key: Key,
    pub pid: i32,
    pub status: Status,
    /// Of an exit that is not known: why.
    pub exit_unknown: Option<ExitUnknown>,
    pub arguments: Vec<String>,
    pub directory: Option<String>,
    pub terminal: bool,
    pub started_ms: u64,
    pub started_by: String,
    /// Resident: its own; of its whole tree where that has a cgroup, with shared pages as often as they are mapped.
    pub rss_bytes: u64,
    /// Used by it and by those of its children that it has waited for; of its whole tree where that has a cgroup.
    pub cpu_ms: u64,
    pub bytes_total: u64,
    pub bytes_kept: u64,
    pub first_seq: u64,
    pub last_seq: u64,
    pub stdin_accepted: u64,
    pub readers: usize,
    /// The disk has no room for its output; it waits.
    pub stalled: bool,
}

/// A descriptor that a handle has use for while the process lives. The record of one that has ended holds none.
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

/// The process as the kernel knows it.
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
    /// Its record was dropped while it was starting or running: it is killed, and erased when it has ended.
    pub(crate) forgotten: AtomicBool,
    /// Its cgroup has been removed.
    pub(crate) cgroup_left: AtomicBool,
    pub(crate) is_description_synced: AtomicBool,
    pub(crate) shared: Arc<Shared>,
}

/// A supervised process. Clones are the same process; dropping them all changes nothing.
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

    /// The kernel's number of the process; 0 when that was never learned.
    pub fn pid(&self) -> i32 {
        self.inner.os.get().map_or(0, |os| os.pid)
    }

    /// It has ended for good: its record needs no descriptor.
    pub(crate) fn let_go(&self) {
        self.inner.master.close();
        if let Some(os) = self.inner.os.get() {
            os.pidfd.close();
        }
    }

    /// The identity of its first process; `None` when that is not known, or is of another boot.
    pub(crate) fn leader(&self) -> Option<Identity> {
        let os = self.inner.os.get()?;
        // A process that the keeper holds is of this boot, also if an older version recorded no boot id.
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

    /// The lowest and the highest sequence number that can be read; both 0 when there is no output.
    pub fn sequence(&self) -> (u64, u64) {
        (self.inner.journal.first_seq(), self.inner.journal.last_seq())
    }

    /// How many bytes of stdin have been accepted.
    pub fn stdin_accepted(&self) -> u64 {
        self.inner.stdin_accepted.load(Ordering::Acquire)
    }

    /// Reads everything behind the sequence number `after`, then goes on as more comes. 0 reads from the beginning.
    pub fn subscribe(&self, after: u64) -> Subscription {
        Subscription::new(self.clone(), after, false)
    }

    /// The same for somebody for whom it never waits, however slow: output may be dropped first.
    pub fn look_on(&self, after: u64) -> Subscription {
        Subscription::new(self.clone(), after, true)
    }

    /// The sequence number behind which the last `bytes` bytes of output stand.
    pub async fn tail(&self, bytes: u64) -> Result<u64> {
        let journal = self.inner.journal.clone();
        let find = move || outpost_journal::Cursor::tail(journal, bytes);
        let cursor = tokio::task::spawn_blocking(find).await.map_err(|_| Error::Stopped)??;
        Ok(cursor.next_seq() - 1)
    }

    /// Takes input that begins at byte `offset` of the child's stdin, or at its end. Accepted means: in the log, and it
    /// will be delivered exactly once, whoever dies.
    pub async fn write_stdin(&self, offset: Option<u64>, data: impl Into<Arc<Vec<u8>>>) -> Result<Accepted> {
        self.write_stdin_up_to(self.inner.shared.config().stdin_waiting_max, offset, data).await
    }

    /// The same where another amount may wait, on the disk, for a child that does not read.
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

    /// Waits until so many bytes of stdin from there on are among those that may wait, or the process has no use for them.
    pub async fn stdin_room(&self, from: u64, bytes: u64) -> Result<()> {
        let until = from.saturating_add(bytes.min(self.inner.shared.config().stdin_waiting_max));
        let (reply, answer) = oneshot::channel();
        self.inner.shared.command(Command::StdinRoom { slot: self.inner.slot, until, reply }).await?;
        answer.await.map_err(|_| Error::Stopped)
    }

    /// Ends stdin after what has been accepted. On a terminal, sends the end-of-file character.
    pub async fn close_stdin(&self) -> Result<()> {
        let (reply, answer) = oneshot::channel();
        self.inner
            .shared
            .command(Command::Stdin { slot: self.inner.slot, offer: Offer::Close { reply } })
            .await?;
        answer.await.map_err(|_| Error::Stopped)?
    }

    /// Tells the terminal a new size.
    pub fn resize(&self, size: Size) -> Result<()> {
        let master = self.inner.master.get().ok_or(Error::NoTerminal)?;
        outpost_sys::pty::resize(master, size).map_err(|errno| Error::io("resize", "the terminal", errno))
    }

    /// The size of its terminal, while it has one.
    pub fn size(&self) -> Option<Size> {
        outpost_sys::pty::size(self.inner.master.get()?).ok()
    }

    /// Sends a signal; nothing is sent to a process that has been reaped.
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
            // Before Linux 6.9 only the keeper can reach the group safely: it alone knows what is reaped.
            Err(Errno::INVAL) => {
                self.inner.shared.command(Command::SignalGroup { slot: self.inner.slot, signal }).await
            }
            Err(errno) => Err(Error::io("signal", format!("pid {}", self.pid()), errno)),
        }
    }

    /// Kills the process and everything it started, also when it has ended itself. Says how many live on.
    pub async fn kill_tree(&self) -> Result<usize> {
        kill::kill_tree(self).await
    }

    /// Ends the process as the ladder says and reports how that went.
    pub async fn kill_and_wait(&self, ladder: Ladder) -> Result<KillReport> {
        kill::climb(self, ladder).await
    }

    /// Waits until the process has been reaped.
    pub async fn exited(&self) -> Result<Exit> {
        let mut progress = self.inner.progress.subscribe();
        let reached = progress.wait_for(|progress| progress.gone || progress.status.exit().is_some()).await;
        reached.map_err(|_| Error::Gone)?.status.exit().ok_or(Error::Gone)
    }

    /// Whoever waited for its end has been told of it. Faces say so: what was put off for them is done now.
    pub fn end_told(&self) {
        self.inner.shared.muster();
    }

    /// Waits until nothing more can come on standard output, which may be long before the exit.
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

    /// Drops the record of a process that has ended.
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
        status.exit().filter(|exit| exit.how == How::Unknown).map(|_| {
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
