//! The engine: its start, and the requests of faces.

use crate::adoption::{self, ReceivedTable};
use crate::cgroups::{cgroups_of, find_cgroups, name_of};
use crate::config::{Config, Counts, Lacks};
use crate::daemon_fds::FdCommand;
use crate::groups::ForeignGroups;
use crate::handover::{self, OwnKeeper};
use crate::housekeeping::Housekeeping;
use crate::link::KeeperLink;
use crate::loading::{self, Found};
use crate::prepare::{self, Prepared};
use crate::prepared_slots::{self, PreparedSlots};
use crate::process::Process;
use crate::process_dir::ProcessDirs;
use crate::reactor::{Command, Reactor};
use crate::shared::Shared;
use crate::spec::{Key, Slot, Spawn};
use crate::syncing::{self, Syncing};
use crate::{Error, Result};
use outpost_keeper::{CGROUPS_ROLE, Component, FDS_ONLY, OWN_SLOT, Readiness};
use outpost_sys::epoll::Waker;
use outpost_sys::{Errno, cgroup};
use std::collections::{HashMap, HashSet};
use std::convert::Infallible;
use std::ffi::CString;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot, watch};

/// Maximum number of queued commands.
const COMMANDS_MAX: usize = 1024;
/// The longest wait for killed processes of another engine.
const CLEANUP_TIMEOUT: Duration = Duration::from_millis(500);

/// The relation between worker and keeper.
pub enum Lifecycle {
    /// The keeper is a process. When it dies, the worker starts a new one from the binary. When the worker dies, the
    /// keeper starts a new one with the arguments. Without arguments the keeper kills everything then.
    Daemon { binary: OwnedFd, arguments: Vec<CString> },
    /// The keeper is a thread.
    Embedded,
}

/// A notice of the keeper to the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// Another worker takes over: exit.
    Retire,
    /// Stop everything.
    Shutdown,
    /// Reload the configuration.
    Reload,
}

/// The result of a replacement.
pub type Replacement = std::result::Result<(), Errno>;

/// The supervised processes. Clones are handles of the same engine.
#[derive(Clone)]
pub struct Engine {
    pub(crate) shared: Arc<Shared>,
}

impl Engine {
    /// Starts the engine of a worker with all that its keeper holds. Returns the daemon's own descriptors by role.
    /// `adjust` gets them first, since the configuration may depend on them.
    pub fn start(
        config: Config,
        link: OwnedFd,
        lifecycle: Lifecycle,
        adjust: impl FnOnce(&mut Config, &HashMap<u8, OwnedFd>),
    ) -> Result<(Engine, HashMap<u8, OwnedFd>)> {
        Engine::begin(config, KeeperLink::new(link), None, lifecycle, adjust)
    }

    /// Starts an engine with a keeper process of its own from this binary. The keeper kills every process when this one
    /// ends.
    pub fn with_keeper_process(config: Config, binary: OwnedFd) -> Result<Engine> {
        let (link, keeper) = handover::start_keeper(&binary, &[])?;
        let lifecycle = Lifecycle::Daemon { binary, arguments: Vec::new() };
        let link = KeeperLink::new(link);
        Engine::begin(config, link, Some(keeper), lifecycle, |_, _| ()).map(|(engine, _)| engine)
    }

    /// Starts an engine with a keeper in a thread of this process. When the process ends, its children are orphans.
    pub fn with_keeper_thread(config: Config) -> Result<Engine> {
        let link = KeeperLink::to_embedded_keeper().map_err(|error| {
            Error::io("start", "the embedded keeper", Errno::from_io_error(&error).unwrap_or(Errno::IO))
        })?;
        Engine::begin(config, link, None, Lifecycle::Embedded, |_, _| ()).map(|(engine, _)| engine)
    }

    /// Kills the processes in the cgroups of an engine in this directory and removes the cgroups. The caller must know
    /// that this engine has ended and that no other one is started.
    pub fn remove_cgroups(state_dir: &Path) {
        cgroup::destroy_abandoned(&cgroups_of(&name_of(state_dir)), CLEANUP_TIMEOUT);
    }

    fn begin(
        mut config: Config,
        link: KeeperLink,
        keeper: Option<OwnKeeper>,
        lifecycle: Lifecycle,
        adjust: impl FnOnce(&mut Config, &HashMap<u8, OwnedFd>),
    ) -> Result<(Engine, HashMap<u8, OwnedFd>)> {
        outpost_sys::signal::ignore_sigpipe();
        let process_dirs = ProcessDirs::open(&config.state_dir)?;
        let name = name_of(&config.state_dir);
        let ReceivedTable { entries, missing, .. } = adoption::receive_table(&link)?;
        // After the table: the keeper removes the cgroups when it ends with its worker.
        let cgroups =
            if config.cgroups { find_cgroups(|| cgroup::Parent::detect(&cgroups_of(&name)))? } else { None };
        if let Some(own) = entries.iter().find(|entry| entry.slot == OWN_SLOT) {
            adjust(&mut config, &own.held);
        }
        // The reactor adopts what the keeper holds. The loader reads the other records.
        let held: HashSet<u64> = entries.iter().map(|entry| entry.slot).chain(missing.clone()).collect();
        let slots = process_dirs.slots();
        let last_slot = slots
            .iter()
            .flatten()
            .map(|slot| slot.0)
            .chain(entries.iter().map(|entry| entry.slot & !FDS_ONLY))
            .max()
            .unwrap_or(0);
        let keeper_pid = match (&keeper, &lifecycle) {
            (Some(keeper), _) => keeper.pid(),
            (None, Lifecycle::Daemon { .. }) => std::os::unix::process::parent_id(),
            (None, Lifecycle::Embedded) => std::process::id(),
        };
        let waker = Waker::new().map_err(|errno| Error::io("set up", "the event loop", errno))?;
        let (commands, receiver) = mpsc::channel(COMMANDS_MAX);
        let (prepared_slots, refill_requests) = PreparedSlots::new();
        let (syncing, to_sync) = Syncing::new();
        let shared = Arc::new(Shared {
            config: Mutex::new(Arc::new(config)),
            process_dirs,
            waker,
            name,
            cgroups,
            foreign_groups: ForeignGroups::default(),
            prepared_slots,
            housekeeping: Housekeeping::new(),
            syncing,
            commands,
            link,
            inherited: Mutex::default(),
            table: Mutex::default(),
            last_slot: AtomicU64::new(last_slot),
            notices: watch::Sender::new(None),
            keeper_pid: AtomicU32::new(keeper_pid),
            serving: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            loaded: watch::Sender::new(false),
            recalled: watch::Sender::new(false),
            adopted: watch::Sender::new(true),
            lacks: watch::Sender::default(),
            stalls: watch::Sender::default(),
            output_bytes: AtomicU64::new(0),
            exits: AtomicU64::new(0),
            longest_turn_us: AtomicU64::new(0),
        });
        Housekeeping::start(&shared).map_err(|error| {
            Error::io("start", "the housekeeping threads", Errno::from_io_error(&error).unwrap_or(Errno::IO))
        })?;
        let mut reactor = Reactor::new(shared.clone(), receiver, lifecycle)?;
        if keeper.is_some()
            && let Some(groups) = &reactor.shared.cgroups
        {
            // The keeper removes them when it ends with this process.
            let groups =
                groups.open().map_err(|errno| Error::io("open", "the directory of cgroups", errno))?;
            reactor.hold_daemon_fd(CGROUPS_ROLE, groups)?;
        }
        reactor.keeper.set_own(keeper);
        reactor.adopt_all(entries);
        reactor.lack_descriptors(missing);
        reactor.publish_adoption();
        *shared.inherited.lock().unwrap_or_else(PoisonError::into_inner) =
            reactor.daemon_fds.copies_of_kept().collect();
        let own = reactor.daemon_fds.copies().collect();
        start_thread("outpost-engine", "the reactor thread", move || reactor.run())?;
        let weak = Arc::downgrade(&shared);
        let refill = move || prepared_slots::refill(&weak, &refill_requests);
        start_thread("outpost-slots", "the thread for prepared slots", refill)?;
        let weak = Arc::downgrade(&shared);
        start_thread("outpost-syncer", "the sync thread", move || syncing::run(&weak, &to_sync))?;
        let engine = Engine { shared };
        let loader = engine.shared.clone();
        let found = Found { slots, held, last: Slot(last_slot) };
        start_thread("outpost-loader", "the loader thread", move || loading::load(loader, found))?;
        Ok((engine, own))
    }

    /// Starts a process. Dropping the future does not cancel the start.
    pub async fn spawn(&self, spawn: Spawn) -> Result<Process> {
        let Some(slot) = self.shared.prepared_slots.take() else {
            self.shared.prepared_slots.request_refill();
            let Ok(started) = self.spawn_made(move || Ok::<_, Infallible>(spawn)).await;
            return started;
        };
        let Prepared { child, answer, replaced } = prepare::prepare(&self.shared, &spawn, slot)?;
        let process = child.process.clone();
        // Before the start, so that the replaced process is gone when the start is confirmed.
        let forget = replaced.map(|replaced| Command::Forget { slot: replaced.slot() });
        let forget = forget.and_then(|forget| self.shared.commands.try_send(forget).err());
        let waits = self.shared.start_directly(child).err().map(|child| Command::Start { child });
        self.shared.prepared_slots.request_refill();
        if waits.is_some() || forget.is_some() {
            let shared = self.shared.clone();
            // In a task, since the caller may drop this future while the queue is full.
            tokio::spawn(async move {
                for command in forget.map(TrySendError::into_inner).into_iter().chain(waits) {
                    let _stopped = shared.command(command).await;
                }
            });
        }
        answer.await.map_err(|_| Error::Stopped)??;
        Ok(process)
    }

    /// Changes when a process begins or ceases to wait because its output, start or exit cannot be recorded. The value
    /// is the last reason.
    pub fn stalls(&self) -> watch::Receiver<String> {
        self.shared.stalls.subscribe()
    }

    /// The resources that the engine lacks.
    pub fn lacks(&self) -> watch::Receiver<Lacks> {
        self.shared.lacks.subscribe()
    }

    /// The number of processes that wait because they cannot be recorded.
    pub fn stalled(&self) -> usize {
        self.shared.table().all().filter(|process| process.is_stalled()).count()
    }

    /// Starts the process that `make` describes. `make` and the preparation run on a blocking thread. The outer error is
    /// that of `make`.
    pub async fn spawn_made<E: Send + 'static>(
        &self,
        make: impl FnOnce() -> std::result::Result<Spawn, E> + Send + 'static,
    ) -> std::result::Result<Result<Process>, E> {
        let shared = self.shared.clone();
        let ask = move |spawn: Spawn| {
            let slot = match shared.prepared_slots.take() {
                Some(slot) => slot,
                None => {
                    let prepared = prepared_slots::prepare(&shared)?;
                    shared.prepared_slots.skip_to(prepared.slot);
                    prepared
                }
            };
            let Prepared { child, answer, replaced } = prepare::prepare(&shared, &spawn, slot)?;
            let process = child.process.clone();
            if let Some(replaced) = replaced {
                shared.command_blocking(Command::Forget { slot: replaced.slot() });
            }
            if let Err(child) = shared.start_directly(child) {
                shared.command_blocking(Command::Start { child });
            }
            shared.prepared_slots.request_refill();
            Ok((process, answer))
        };
        let starting = async move {
            let asked = tokio::task::spawn_blocking(|| make().map(ask)).await;
            Ok(match asked.unwrap_or(Ok(Err(Error::Stopped)))? {
                Ok((process, answer)) => answer.await.unwrap_or(Err(Error::Stopped)).map(|()| process),
                Err(error) => Err(error),
            })
        };
        tokio::spawn(starting).await.unwrap_or(Ok(Err(Error::Stopped)))
    }

    /// The process with this key, running or ended.
    pub async fn find(&self, key: &Key) -> Option<Process> {
        let found = self.shared.table().by_key(key);
        match found {
            Some(process) => Some(process),
            None => {
                self.complete().await;
                self.shared.table().by_key(key)
            }
        }
    }

    /// The process in this slot, running or ended.
    pub async fn get(&self, slot: Slot) -> Option<Process> {
        let found = self.shared.table().by_slot(slot);
        match found {
            Some(process) => Some(process),
            None => {
                self.complete().await;
                self.shared.table().by_slot(slot)
            }
        }
    }

    /// All processes, oldest first.
    pub async fn list(&self) -> Vec<Process> {
        self.complete().await;
        self.shared.table().all().cloned().collect()
    }

    /// The processes in the table now, oldest first. Some of an earlier worker are missing while a resource of the host
    /// is exhausted.
    pub async fn list_known(&self) -> Vec<Process> {
        until(&self.shared.loaded).await;
        self.shared.table().all().cloned().collect()
    }

    /// Changes limits. The size limit of a process's journal changes for later processes, the other limits for all.
    pub fn configure(&self, change: impl FnOnce(&mut Config)) {
        let mut config = (*self.shared.config()).clone();
        change(&mut config);
        *self.shared.config.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(config);
        self.shared.syncing.look_again();
        // If the queue is full, the retention timer applies them.
        let _busy = self.shared.commands.try_send(Command::Configured);
        self.shared.waker.wake();
    }

    /// The counters of the engine.
    pub fn counts(&self) -> Counts {
        let table = self.shared.table();
        let mut counts = Counts {
            output_bytes_total: self.shared.output_bytes.load(Ordering::Relaxed),
            exits_total: self.shared.exits.load(Ordering::Relaxed),
            longest_turn: Duration::from_micros(self.shared.longest_turn_us.load(Ordering::Relaxed)),
            ..Counts::default()
        };
        for process in table.all() {
            match process.status().exit() {
                None => counts.running += 1,
                Some(_) => counts.ended += 1,
            }
            counts.readers += process.inner.readers.count();
            counts.journal_bytes += process.inner.journal.bytes_kept();
        }
        counts
    }

    /// Waits until every process of earlier workers is in the table. A process that is not there does not exist then.
    async fn complete(&self) {
        until(&self.shared.recalled).await;
        until(&self.shared.adopted).await;
    }

    /// Has the keeper hold one of the daemon's own descriptors under a role, for later workers.
    pub async fn hold(&self, role: u8, fd: OwnedFd) -> Result<()> {
        let (reply, answer) = oneshot::channel();
        self.shared.command(Command::DaemonFds(FdCommand::Hold { role, fd, reply })).await?;
        answer.await.map_err(|_| Error::Stopped)?
    }

    /// Has the keeper close one of them. A socket refuses clients from then on, also while other processes have copies
    /// of it.
    pub async fn release(&self, role: u8) -> Result<()> {
        let (reply, answer) = oneshot::channel();
        self.shared.command(Command::DaemonFds(FdCommand::Release { role, reply })).await?;
        answer.await.map_err(|_| Error::Stopped)?
    }

    /// Has the keeper hold a descriptor under a new number, for later workers, such as the connection of a client that
    /// waits for a reply. `role` names the face. The descriptor outlives this worker when this has returned.
    pub async fn keep(&self, role: u8, fd: OwnedFd) -> Result<u64> {
        let number = self.shared.next_slot().0 | FDS_ONLY;
        let (reply, answer) = oneshot::channel();
        self.shared.command(Command::DaemonFds(FdCommand::Keep { number, role, fd, reply })).await?;
        answer.await.map_err(|_| Error::Stopped)??;
        Ok(number)
    }

    /// Has the keeper close a kept descriptor.
    pub async fn drop_kept(&self, number: u64) -> Result<()> {
        self.shared.command(Command::DaemonFds(FdCommand::DropKept { number })).await
    }

    /// The kept descriptors of earlier workers under a role. A second call returns none.
    pub fn take_kept(&self, role: u8) -> Vec<(u64, OwnedFd)> {
        let mut inherited = self.shared.inherited.lock().unwrap_or_else(PoisonError::into_inner);
        inherited.extract_if(.., |(_, its, _)| *its == role).map(|(number, _, fd)| (number, fd)).collect()
    }

    /// Reports that this worker has served a client. Faces call this after every reply; the keeper is sent it once.
    pub async fn serving(&self) -> Result<()> {
        // A load first, since this is called after every reply.
        let serving = &self.shared.serving;
        match serving.load(Ordering::Relaxed) || serving.swap(true, Ordering::Relaxed) {
            true => Ok(()),
            false => self.shared.command(Command::Serving).await,
        }
    }

    /// Notifies the supervisor, if there is one.
    pub async fn notify(&self, readiness: Readiness) -> Result<()> {
        self.shared.command(Command::Notify(readiness)).await
    }

    /// Has the supervisor show a text as the daemon's status.
    pub async fn show_status(&self, status: &str) -> Result<()> {
        let text = outpost_sys::file::sealed_memory("outpost-status", status.as_bytes());
        let text = text.map_err(|errno| Error::io("write", "a status", errno))?;
        self.shared.command(Command::ShowStatus(text)).await
    }

    /// Sends a heartbeat to the keeper, with the interval until the next one. The keeper kills a worker whose
    /// heartbeats stop.
    pub async fn heartbeat(&self, interval: Duration) -> Result<()> {
        let interval_ms = u32::try_from(interval.as_millis()).unwrap_or(u32::MAX);
        self.shared.command(Command::Heartbeat { interval_ms }).await
    }

    /// The pid of the keeper.
    pub fn keeper_pid(&self) -> u32 {
        self.shared.keeper_pid.load(Ordering::Acquire)
    }

    /// Notices of the keeper.
    pub fn notices(&self) -> watch::Receiver<Option<Notice>> {
        self.shared.notices.subscribe()
    }

    /// Replaces worker or keeper by another binary. A worker that is replaced exits before the reply.
    pub async fn replace(&self, component: Component, binary: OwnedFd) -> Result<Replacement> {
        let (reply, answer) = oneshot::channel();
        self.shared.command(Command::Replace { component, binary, reply }).await?;
        answer.await.map_err(|_| Error::Stopped)
    }

    /// Kills every process and ends the keeper.
    pub async fn shut_down(&self, timeout: Duration) -> Result<()> {
        self.end_processes(timeout).await?;
        self.end_keeper().await
    }

    /// Ends the keeper and closes the descriptors that it holds.
    pub async fn end_keeper(&self) -> Result<()> {
        let (done, sent) = oneshot::channel();
        self.shared.command(Command::Stop { done }).await?;
        // The caller exits next, and a keeper that was not sent `Stop` would start another worker.
        sent.await.map_err(|_| Error::Stopped)
    }
}

/// Waits for a condition of the engine.
async fn until(condition: &watch::Sender<bool>) {
    let mut condition = condition.subscribe();
    // The sender lives as long as the engine.
    let _never_fails = condition.wait_for(|holds| *holds).await;
}

/// Starts a thread with this name; `what` describes it in the error.
fn start_thread(name: &str, what: &'static str, body: impl FnOnce() + Send + 'static) -> Result<()> {
    let started = std::thread::Builder::new().name(name.to_owned()).spawn(body);
    let errno = |error: std::io::Error| Errno::from_io_error(&error).unwrap_or(Errno::IO);
    started.map(|_| ()).map_err(|error| Error::io("start", what, errno(error)))
}
