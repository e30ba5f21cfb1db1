//! The engine itself: its start, and the way faces reach processes.

use crate::adoption::{self, ReceivedTable};
use crate::config::{Config, Counts, Lacks};
use crate::groups::ForeignGroups;
use crate::handover::{self, OwnKeeper};
use crate::housekeeping::Housekeeping;
use crate::link::Link;
use crate::loading::{self, Found};
use crate::own::Order;
use crate::process::Process;
use crate::reactor::{Command, Reactor};
use crate::shared::Shared;
use crate::spares::{self, Spares};
use crate::spec::{Key, Slot, Spawn};
use crate::starting::{self, Prepared};
use crate::store::Store;
use crate::syncing::{self, Syncing};
use crate::{Error, Result};
use outpost_keeper::{CGROUPS_ROLE, KEPT, OWN_SLOT, Said, What};
use outpost_sys::epoll::Waker;
use outpost_sys::{Errno, cgroup};
use std::collections::{HashMap, HashSet};
use std::ffi::CString;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot, watch};

/// Commands that may wait for the reactor.
const COMMANDS_MAX: usize = 1024;
/// How often, and at which distance, the start of an engine looks for cgroups while a resource has run out.
const CGROUPS_ATTEMPTS: u32 = 20;
const CGROUPS_RETRY: Duration = Duration::from_millis(25);
/// How long who clears up after another engine waits for those that it has killed.
const CLEAR_PATIENCE: Duration = Duration::from_millis(500);

/// Whether this process can be restarted by, and can restart, its keeper.
pub enum Lifecycle {
    /// A worker with a keeper process. With these a new keeper is started when that one dies, which with these arguments
    /// starts a new worker when this one dies; without any it ends everything then.
    Daemon { binary: OwnedFd, arguments: Vec<CString> },
    /// The keeper is a thread.
    Embedded,
}

/// What the keeper wants of the program around the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// Another worker takes over: leave.
    Retire,
    /// End everything.
    Shutdown,
    /// Read the configuration again.
    Reload,
}

/// The outcome of a replacement.
pub type Replacement = std::result::Result<(), Errno>;

/// The table of supervised processes. Clones are the same engine.
#[derive(Clone)]
pub struct Engine {
    pub(crate) shared: Arc<Shared>,
}

impl Engine {
    /// Begins below a keeper process, with everything it has kept. Returns the daemon's own descriptors by role; `adjust`
    /// sees them first, since what the daemon was started with may be among them.
    pub fn start(
        config: Config,
        link: OwnedFd,
        lifecycle: Lifecycle,
        adjust: impl FnOnce(&mut Config, &HashMap<u8, OwnedFd>),
    ) -> Result<(Engine, HashMap<u8, OwnedFd>)> {
        Engine::begin(config, Link::new(link), None, lifecycle, adjust)
    }

    /// Begins with a keeper process of our own, from this binary, which ends with us and takes every process along.
    pub fn alone(config: Config, binary: OwnedFd) -> Result<Engine> {
        let (link, keeper) = handover::start_keeper(&binary, &[])?;
        let lifecycle = Lifecycle::Daemon { binary, arguments: Vec::new() };
        Engine::begin(config, Link::new(link), Some(keeper), lifecycle, |_, _| ()).map(|(engine, _)| engine)
    }

    /// Begins with a keeper in a thread of this process: children end up as strangers when it ends.
    pub fn embedded(config: Config) -> Result<Engine> {
        let link = Link::to_embedded_keeper().map_err(|error| {
            Error::io("start", "the embedded keeper", Errno::from_io_error(&error).unwrap_or(Errno::IO))
        })?;
        Engine::begin(config, link, None, Lifecycle::Embedded, |_, _| ()).map(|(engine, _)| engine)
    }

    /// Ends and removes what an engine in this directory has left outside of it. Only for who knows that it is gone, and that
    /// there will be no other one.
    pub fn clear_up_after(state_dir: &Path) {
        cgroup::destroy_abandoned(&cgroups_of(&name_of(state_dir)), CLEAR_PATIENCE);
    }

    fn begin(
        mut config: Config,
        mut link: Link,
        keeper: Option<OwnKeeper>,
        lifecycle: Lifecycle,
        adjust: impl FnOnce(&mut Config, &HashMap<u8, OwnedFd>),
    ) -> Result<(Engine, HashMap<u8, OwnedFd>)> {
        outpost_sys::signal::ignore_sigpipe();
        let store = Store::open(&config.state_dir)?;
        let name = name_of(&config.state_dir);
        let ReceivedTable { entries, missing, .. } = adoption::receive_table(&mut link)?;
        // Not before there is a keeper who can be told of it.
        let cgroups =
            if config.cgroups { find_cgroups(|| cgroup::Parent::detect(&cgroups_of(&name)))? } else { None };
        if let Some(own) = entries.iter().find(|entry| entry.slot == OWN_SLOT) {
            adjust(&mut config, &own.held);
        }
        // The reactor takes over what the keeper holds. Everything else is of an earlier life.
        let held: HashSet<u64> = entries.iter().map(|entry| entry.slot).chain(missing.clone()).collect();
        let slots = store.slots();
        let last_slot = slots
            .iter()
            .flatten()
            .map(|slot| slot.0)
            .chain(entries.iter().map(|entry| entry.slot & !KEPT))
            .max()
            .unwrap_or(0);
        let keeper_pid = match (&keeper, &lifecycle) {
            (Some(keeper), _) => keeper.pid(),
            (None, Lifecycle::Daemon { .. }) => std::os::unix::process::parent_id(),
            (None, Lifecycle::Embedded) => std::process::id(),
        };
        let waker = Waker::new().map_err(|errno| Error::io("set up", "the event loop", errno))?;
        let (commands, receiver) = mpsc::channel(COMMANDS_MAX);
        let (spares, wishes) = Spares::new();
        let (syncing, to_sync) = Syncing::new();
        let shared = Arc::new(Shared {
            config: Mutex::new(Arc::new(config)),
            store,
            waker,
            name,
            cgroups,
            foreign_groups: ForeignGroups::default(),
            spares,
            housekeeping: Housekeeping::new(),
            syncing,
            commands,
            keeper: Mutex::new(Some(link.socket())),
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
        let mut reactor = Reactor::new(shared.clone(), receiver, link, lifecycle)?;
        if keeper.is_some()
            && let Some(groups) = &reactor.shared.cgroups
        {
            // It ends with us, however we end, and clears up behind us.
            let groups =
                groups.open().map_err(|errno| Error::io("open", "the directory of cgroups", errno))?;
            reactor.hold_own(CGROUPS_ROLE, groups)?;
        }
        reactor.keeper = keeper;
        reactor.adopt_all(entries);
        reactor.lack_descriptors(missing);
        reactor.publish_adoption();
        *shared.inherited.lock().unwrap_or_else(PoisonError::into_inner) =
            reactor.own.copies_of_kept().collect();
        let own = reactor.own.copies().collect();
        let thread = |name: &str| std::thread::Builder::new().name(name.to_owned());
        let spawned = thread("outpost-engine").spawn(move || reactor.run());
        spawned.map_err(|error| {
            Error::io("start", "the engine's thread", Errno::from_io_error(&error).unwrap_or(Errno::IO))
        })?;
        let weak = Arc::downgrade(&shared);
        let spawned = thread("outpost-spares").spawn(move || spares::keep(&weak, &wishes));
        spawned.map_err(|error| {
            Error::io("start", "the thread for spares", Errno::from_io_error(&error).unwrap_or(Errno::IO))
        })?;
        let weak = Arc::downgrade(&shared);
        let spawned = thread("outpost-syncer").spawn(move || syncing::keep(&weak, &to_sync));
        spawned.map_err(|error| {
            Error::io("start", "the thread for syncing", Errno::from_io_error(&error).unwrap_or(Errno::IO))
        })?;
        let engine = Engine { shared };
        let loader = engine.shared.clone();
        let found = Found { slots, held, last: Slot(last_slot) };
        let spawned = thread("outpost-loader").spawn(move || loading::load(loader, found));
        spawned.map_err(|error| {
            Error::io("start", "the loader's thread", Errno::from_io_error(&error).unwrap_or(Errno::IO))
        })?;
        Ok((engine, own))
    }

    /// Starts a process. A caller that loses interest midway does not stop it: it is started or it is not.
    pub async fn spawn(&self, spawn: Spawn) -> Result<Process> {
        let Some(spare) = self.shared.spares.take() else {
            self.shared.spares.restock();
            return self.spawn_made(move || Ok(spawn)).await;
        };
        let Prepared { child, answer, loser } = starting::prepare(&self.shared, &spawn, spare)?;
        let process = child.process.clone();
        // Before the start, so that who hears of that finds the loser gone. Full queues refuse both.
        let forget = loser.map(|loser| Command::Forget { slot: loser.slot() });
        let forget = forget.and_then(|forget| self.shared.commands.try_send(forget).err());
        let waits = self.shared.start_directly(child).err().map(|child| Command::Start { child });
        self.shared.spares.restock();
        if waits.is_some() || forget.is_some() {
            let shared = self.shared.clone();
            // Whoever asked may lose interest while this waits for its turn.
            tokio::spawn(async move {
                for command in forget.map(TrySendError::into_inner).into_iter().chain(waits) {
                    let _stopped = shared.command(command).await;
                }
            });
        }
        answer.await.map_err(|_| Error::Stopped)??;
        Ok(process)
    }

    /// Changes when a process begins or ceases to wait because its output, start or exit cannot be recorded. The value is why
    /// it last could not be.
    pub fn stalls(&self) -> watch::Receiver<String> {
        self.shared.stalls.subscribe()
    }

    /// What the engine lacks, as it changes.
    pub fn lacks(&self) -> watch::Receiver<Lacks> {
        self.shared.lacks.subscribe()
    }

    /// How many processes wait because they cannot be recorded.
    pub fn stalled(&self) -> usize {
        self.shared.table().all().filter(|process| process.is_stalled()).count()
    }

    /// Starts a process that `make` describes on a thread that may wait, where it is then prepared.
    pub async fn spawn_made<E>(
        &self,
        make: impl FnOnce() -> std::result::Result<Spawn, E> + Send + 'static,
    ) -> std::result::Result<Process, E>
    where
        E: From<Error> + Send + 'static,
    {
        let shared = self.shared.clone();
        let ask = move || {
            let spawn = make()?;
            let spare = match shared.spares.take() {
                Some(spare) => spare,
                None => {
                    let spare = spares::make(&shared)?;
                    shared.spares.passed(spare.slot);
                    spare
                }
            };
            let Prepared { child, answer, loser } = starting::prepare(&shared, &spawn, spare)?;
            let process = child.process.clone();
            if let Some(loser) = loser {
                shared.command_blocking(Command::Forget { slot: loser.slot() });
            }
            if let Err(child) = shared.start_directly(child) {
                shared.command_blocking(Command::Start { child });
            }
            shared.spares.restock();
            Ok::<_, E>((process, answer))
        };
        let starting = async move {
            let (process, answer) = tokio::task::spawn_blocking(ask).await.map_err(|_| Error::Stopped)??;
            answer.await.map_err(|_| Error::Stopped)??;
            Ok(process)
        };
        tokio::spawn(starting).await.map_err(|_| Error::Stopped)?
    }

    /// The process of this key, living or ended.
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

    /// The process of this slot, living or ended.
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

    /// The processes that can be seen now, oldest first. Some of an earlier worker are missing while a resource of the host
    /// is exhausted.
    pub async fn list_known(&self) -> Vec<Process> {
        until(&self.shared.loaded).await;
        self.shared.table().all().cloned().collect()
    }

    /// Changes limits while we run. What a process's own journal may take changes for those to come, the rest for all.
    pub fn configure(&self, change: impl FnOnce(&mut Config)) {
        let mut config = (*self.shared.config()).clone();
        change(&mut config);
        *self.shared.config.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(config);
        self.shared.syncing.look_again();
        // One that is too busy for it looks at them soon anyway.
        let _busy = self.shared.commands.try_send(Command::Configured);
        self.shared.waker.wake();
    }

    /// How much there is of everything, and how much there was since this worker began.
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

    /// Waits until every process of earlier lives and workers is in the table: what is not there by then does not exist.
    async fn complete(&self) {
        until(&self.shared.recalled).await;
        until(&self.shared.adopted).await;
    }

    /// Gives the keeper one of the daemon's own descriptors to hold under a role, for workers to come.
    pub async fn hold(&self, role: u8, fd: OwnedFd) -> Result<()> {
        let (reply, answer) = oneshot::channel();
        self.shared.command(Command::Own(Order::Hold { role, fd, reply })).await?;
        answer.await.map_err(|_| Error::Stopped)?
    }

    /// Has the keeper close one of them. A socket refuses clients from then on, also while others have copies of it.
    pub async fn release(&self, role: u8) -> Result<()> {
        let (reply, answer) = oneshot::channel();
        self.shared.command(Command::Own(Order::Release { role, reply })).await?;
        answer.await.map_err(|_| Error::Stopped)?
    }

    /// Has the keeper hold a descriptor under a number of its own, for workers to come: somebody's connection, while an
    /// answer is owed. `role` says whose business it is. It outlives this worker when this has returned.
    pub async fn keep(&self, role: u8, fd: OwnedFd) -> Result<u64> {
        let number = self.shared.next_slot().0 | KEPT;
        let (reply, answer) = oneshot::channel();
        self.shared.command(Command::Own(Order::Keep { number, role, fd, reply })).await?;
        answer.await.map_err(|_| Error::Stopped)??;
        Ok(number)
    }

    /// Has the keeper close it.
    pub async fn let_go(&self, number: u64) -> Result<()> {
        self.shared.command(Command::Own(Order::LetGo { number })).await
    }

    /// What workers before this one have had kept under a role. Asked once.
    pub fn take_kept(&self, role: u8) -> Vec<(u64, OwnedFd)> {
        let mut inherited = self.shared.inherited.lock().unwrap_or_else(PoisonError::into_inner);
        inherited.extract_if(.., |(_, its, _)| *its == role).map(|(number, _, fd)| (number, fd)).collect()
    }

    /// Tells the keeper that this worker has done something for somebody. Faces say so after every answer; once is sent.
    pub async fn serving(&self) -> Result<()> {
        // Looked at first: this is asked after every answer.
        let serving = &self.shared.serving;
        match serving.load(Ordering::Relaxed) || serving.swap(true, Ordering::Relaxed) {
            true => Ok(()),
            false => self.shared.command(Command::Serving).await,
        }
    }

    /// Tells whoever supervises the daemon, if somebody does.
    pub async fn notify(&self, said: Said) -> Result<()> {
        self.shared.command(Command::Notify(said)).await
    }

    /// Has a supervisor show this text as the daemon's status.
    pub async fn say(&self, status: &str) -> Result<()> {
        let text = outpost_sys::file::sealed_memory("outpost-status", status.as_bytes());
        let text = text.map_err(|errno| Error::io("write", "a status", errno))?;
        self.shared.command(Command::Say(text)).await
    }

    /// Tells the keeper that this worker lives, and within which time it says so again. One that has begun to and stops is
    /// killed.
    pub async fn alive(&self, every: Duration) -> Result<()> {
        let every_ms = u32::try_from(every.as_millis()).unwrap_or(u32::MAX);
        self.shared.command(Command::Alive(every_ms)).await
    }

    /// The process that keeps ours.
    pub fn keeper_pid(&self) -> u32 {
        self.shared.keeper_pid.load(Ordering::Acquire)
    }

    /// What the keeper wants of us, as it comes.
    pub fn notices(&self) -> watch::Receiver<Option<Notice>> {
        self.shared.notices.subscribe()
    }

    /// Continues with another binary. A worker that is replaced does not live to see the answer.
    pub async fn replace(&self, what: What, binary: OwnedFd) -> Result<Replacement> {
        let (reply, answer) = oneshot::channel();
        self.shared.command(Command::Replace { what, binary, reply }).await?;
        answer.await.map_err(|_| Error::Stopped)
    }

    /// Kills every process at once and ends the keeper.
    pub async fn shut_down(&self, patience: Duration) -> Result<()> {
        self.end_processes(patience).await?;
        self.end_keeper().await
    }

    /// Ends the keeper, and with it everything that it holds for us.
    pub async fn end_keeper(&self) -> Result<()> {
        let (done, told) = oneshot::channel();
        self.shared.command(Command::Stop { done }).await?;
        // Our caller ends next, and the reactor with it: a keeper that was not told would start another worker.
        told.await.map_err(|_| Error::Stopped)
    }
}

/// Waits for a condition of the engine.
async fn until(condition: &watch::Sender<bool>) {
    let mut condition = condition.subscribe();
    // The sender lives as long as the engine.
    let _never_fails = condition.wait_for(|holds| *holds).await;
}

/// One state directory, one name: two daemons never touch each other's children.
fn name_of(state_dir: &Path) -> String {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    state_dir.hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}

fn cgroups_of(name: &str) -> String {
    format!("outpost-{name}")
}

/// Finds out whether there are cgroups. A resource that has run out for now is no answer: a worker that went on without the
/// cgroups of earlier workers could not end their trees. So this is tried again, and then the start of the engine fails, which
/// the keeper repeats with back-off. `EAGAIN` is a limit of the hierarchy, which may stay: no tree is in a cgroup then.
fn find_cgroups<T>(mut detect: impl FnMut() -> outpost_sys::Result<Option<T>>) -> Result<Option<T>> {
    for _ in 1..CGROUPS_ATTEMPTS {
        if let Ok(found) = detect() {
            return Ok(found);
        }
        std::thread::sleep(CGROUPS_RETRY);
    }
    match detect() {
        Err(Errno::AGAIN) => {
            tracing::warn!("the limit of the cgroup hierarchy is reached; trees are ended without cgroups");
            Ok(None)
        }
        found => found.map_err(|errno| Error::io("make", "the cgroup of this daemon", errno)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resource_that_runs_out_for_a_moment_does_not_disable_cgroups() {
        let mut answers = [Err(Errno::MFILE), Err(Errno::NOMEM), Ok(Some(7))].into_iter();
        assert_eq!(find_cgroups(|| answers.next().unwrap()), Ok(Some(7)));
        assert_eq!(find_cgroups::<i32>(|| Ok(None)), Ok(None), "a host without cgroups");
    }

    #[test]
    fn a_resource_that_stays_away_fails_the_start_and_a_limit_of_the_hierarchy_does_not() {
        let failed = find_cgroups::<i32>(|| Err(Errno::NFILE)).unwrap_err();
        assert!(failed.is_exhaustion(), "{failed}");
        assert_eq!(find_cgroups::<i32>(|| Err(Errno::AGAIN)), Ok(None));
    }
}
