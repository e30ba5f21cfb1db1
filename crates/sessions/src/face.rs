//! The state that all requests share: sessions, engine, ledger, settings, and the runners of turns.

use crate::agents::installed::CliCatalog;
use crate::agents::{Cli, Mode};
use crate::methods::rss::RssCache;
use crate::session::{self, Accepted, Created, Session, State, Stop};
use crate::settings::Settings;
use crate::shutdown::Shutdown;
use crate::store::database::{self, NewSession};
use crate::turn::permission_quota::TotalUsage;
use crate::turn::placeholder_files::PlaceholderFiles;
use crate::turn::sandbox::Sandbox;
use crate::turn::terminate::terminate;
use crate::turn::warm_pool::{self, WarmPool};
use crate::turn::{self, checkpoint, launch};
use crate::{Error, FACE, Result};
use outpost_approvals::Approvals;
use outpost_engine::{Engine, Process};
use outpost_ledger::Ledger;
use outpost_sandbox::SandboxBuilder;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::sync::watch;

/// How long the files of a destroyed session stay for streams that still read them.
const LAST_READ_TIMEOUT: Duration = Duration::from_secs(60);

/// The sessions face of one worker.
pub struct Face {
    pub(crate) engine: Engine,
    pub(crate) approvals: Approvals,
    settings: watch::Sender<Arc<Settings>>,
    pub(crate) clis: Arc<CliCatalog>,
    pub(crate) started_at: Instant,
    pub(crate) rss: RssCache,
    /// Size of the pending permission questions of all sessions.
    pub(crate) permission_usage: TotalUsage,
    pub(crate) warm_pool: WarmPool,
    sessions: Mutex<HashMap<String, Arc<Session>>>,
    /// The sessions that have a runner.
    active: Mutex<HashMap<String, Arc<Session>>>,
    /// The runtime of a separate thread: parsing of agent output must not delay requests.
    turns: Handle,
    pub(crate) sandboxes: SandboxBuilder,
    pub(crate) placeholder_files: PlaceholderFiles,
    pub(crate) shutdown: Shutdown,
}

impl Face {
    /// Loads all sessions and resumes the turns that the previous worker left open.
    pub async fn start(engine: Engine, approvals: Approvals, settings: Settings) -> Result<Arc<Face>> {
        let turns = turns_thread()?;
        let clis = Arc::new(CliCatalog::new(&settings));
        let face = Arc::new(Face {
            engine,
            approvals,
            clis,
            started_at: Instant::now(),
            rss: RssCache::default(),
            permission_usage: TotalUsage::default(),
            warm_pool: WarmPool::default(),
            sessions: Mutex::default(),
            active: Mutex::default(),
            turns,
            placeholder_files: PlaceholderFiles::default(),
            sandboxes: SandboxBuilder::new(settings.state.clone(), settings.private.clone()),
            shutdown: Shutdown::default(),
            settings: watch::Sender::new(Arc::new(settings)),
        });
        let dir = face.settings().dir.clone();
        let known = face.ledger().transact(move |tx| database::load(tx, &dir)).await?;
        // Fill the catalog early: the first `health.check` reports it.
        face.clis.all();
        for session in known {
            face.sessions().insert(session.id.clone(), Arc::new(session));
        }
        let orphans = face.orphaned_processes().await;
        for session in face.all() {
            face.spawn_runner(&session);
        }
        let cleaning = face.clone();
        tokio::spawn(async move { cleaning.clean_up(orphans).await });
        tokio::spawn(warm_pool::end_idle(face.clone()));
        Ok(face)
    }

    /// Running processes that no turn uses: of sessions whose `session.destroy` the previous worker did not finish, and
    /// warm processes. A process that cannot be taken over yet is left to the next worker, so that clients need not wait.
    async fn orphaned_processes(&self) -> Vec<Process> {
        let mut orphans = self.engine.list_known().await;
        orphans.retain(|process| {
            let key = process.key();
            let is_ours = key.face == FACE && process.status().exit().is_none();
            is_ours && self.session(&key.scope).is_none_or(|session| !checkpoint::uses(&session, &key.id))
        });
        orphans
    }

    /// Ends orphaned processes and deletes the directories of unknown sessions.
    async fn clean_up(&self, orphans: Vec<Process>) {
        for process in orphans {
            terminate(&process).await;
        }
        let is_known = |id: &str| self.session(id).is_some();
        let dir = self.settings().dir.clone();
        let names = tokio::task::spawn_blocking(move || {
            let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
            entries.map(|entry| entry.path()).collect::<Vec<PathBuf>>()
        });
        for path in names.await.unwrap_or_default() {
            let id = path.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
            // The daemon names its directories by UUID. Nothing else is deleted.
            if uuid::Uuid::parse_str(&id).is_ok() && !is_known(&id) {
                let _deleted = tokio::task::spawn_blocking(move || std::fs::remove_dir_all(path)).await;
            }
        }
    }

    /// The current settings. Work keeps the copy that it took when it began.
    pub(crate) fn settings(&self) -> Arc<Settings> {
        self.settings.borrow().clone()
    }

    /// Applies reloaded settings.
    pub fn configure(&self, settings: Settings) {
        self.clis.configure(&settings);
        self.settings.send_replace(Arc::new(settings));
    }

    pub(crate) fn ledger(&self) -> &Ledger {
        self.approvals.ledger()
    }

    fn sessions(&self) -> MutexGuard<'_, HashMap<String, Arc<Session>>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn session(&self, id: &str) -> Option<Arc<Session>> {
        self.sessions().get(id).cloned()
    }

    /// All sessions, oldest first.
    pub(crate) fn all(&self) -> Vec<Arc<Session>> {
        let mut all: Vec<Arc<Session>> = self.sessions().values().cloned().collect();
        all.sort_by_key(|session| session.created.order);
        all
    }

    fn active(&self) -> MutexGuard<'_, HashMap<String, Arc<Session>>> {
        self.active.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of sessions, and how many of them are busy. The cost depends on the sessions with a runner only.
    pub fn counts(&self) -> (usize, usize) {
        let busy = self.active().values().filter(|session| session.state().is_busy()).count();
        (self.sessions().len(), busy)
    }

    pub(crate) async fn create(
        &self,
        path: PathBuf,
        cli: Cli,
        mode: Mode,
        model: Option<String>,
        sandbox: Option<Sandbox>,
    ) -> Result<String> {
        let id = uuid::Uuid::new_v4().to_string();
        let at = session::now();
        let new = NewSession {
            id: id.clone(),
            path: path.display().to_string(),
            cli,
            mode,
            model: model.clone(),
            sandbox: sandbox.clone(),
            created: at,
        };
        let order = self.ledger().transact(move |tx| database::insert(tx, &new)).await?;
        let (created, state) = (Created { at, order }, State::new(mode, model, at));
        let dir = self.settings().dir.join(&id);
        let session = Session::new(id.clone(), path, cli, created, dir, sandbox, state);
        self.sessions().insert(id.clone(), Arc::new(session));
        Ok(id)
    }

    pub(crate) fn is_full(&self) -> bool {
        self.sessions().len() >= self.settings().sessions_max
    }

    /// Stores a message and starts a runner for it. The turn runs whether or not a client reads its events.
    pub(crate) async fn send(self: &Arc<Face>, session: &Arc<Session>, message: &str) -> Result<Accepted> {
        let accepted = session.accept(message);
        let (Accepted::Live { turn } | Accepted::Queued { turn, .. }) = accepted else { return Ok(accepted) };
        let (id, text, active) = (session.id.clone(), message.to_owned(), session.state().active);
        let inserted = self.ledger().transact(move |tx| database::insert_turn(tx, &id, turn, &text, active));
        let written = inserted.await;
        session.persisted(turn, written.is_ok());
        match written {
            // A concurrent `session.destroy` deleted the session's row.
            Err(_) if session.state().is_destroyed => return Ok(Accepted::Destroyed),
            written => written?,
        }
        self.spawn_runner(session);
        Ok(accepted)
    }

    /// Starts the runner of a session, unless it has one.
    fn spawn_runner(self: &Arc<Face>, session: &Arc<Session>) {
        if !self.shutdown.is_stopping()
            && let Some(first) = session.claim_runner()
        {
            self.active().insert(session.id.clone(), session.clone());
            let (face, session) = (self.clone(), session.clone());
            self.turns.spawn(turn::run_turns(face, session, first));
        }
    }

    /// The sessions that have a runner.
    pub(crate) fn running(&self) -> Vec<Arc<Session>> {
        self.active().values().cloned().collect()
    }

    pub(crate) fn runner_stopped(&self, session: &Session) {
        let mut active = self.active();
        // Another runner may have started in the meantime.
        if !session.state().has_runner {
            active.remove(&session.id);
        }
    }

    /// Ends the running turn and cancels the queued ones. Returns whether there were any.
    pub(crate) async fn interrupt(&self, session: &Session) -> Result<bool> {
        let found = session.interrupt(Stop::Interrupted);
        if found {
            let id = session.id.clone();
            self.ledger().transact(move |tx| database::cancel_turns(tx, &id)).await?;
        }
        Ok(found)
    }

    /// Removes a session. Returns when all of its processes have ended.
    pub(crate) async fn destroy(&self, id: &str) -> Result<bool> {
        let Some(session) = self.sessions().remove(id) else { return Ok(false) };
        session.interrupt(Stop::Destroyed);
        let deleted = id.to_owned();
        self.ledger().transact(move |tx| database::delete(tx, &deleted)).await?;
        let open: Vec<u64> = session.state().turns.iter().rev().take(2).map(|turn| turn.number).collect();
        for turn in open {
            let process = launch::key(&session, checkpoint::process_of(&session, turn));
            if let Some(process) = self.engine.find(&process).await {
                terminate(&process).await;
            }
        }
        let mut changes = session.changes();
        drop(changes.wait_for(|_| !session.state().has_runner).await);
        warm_pool::end(self, &session).await;
        // Open streams read their terminal event first. A message that is being stored needs the session too.
        tokio::spawn(async move {
            let read = changes.wait_for(|_| session.state().is_quiescent());
            drop(tokio::time::timeout(LAST_READ_TIMEOUT, read).await);
            let dir = session.dir.clone();
            let _deleted = tokio::task::spawn_blocking(move || std::fs::remove_dir_all(dir)).await;
        });
        Ok(true)
    }

    /// Stores the mode, model and conversation of a session.
    pub(crate) async fn save(&self, session: &Arc<Session>) -> Result<()> {
        let session = session.clone();
        let save = self.ledger().transact(move |tx| {
            // Read inside the transaction, so that a concurrent change is not overwritten by an older value.
            let (mode, model, conversation_id) = {
                let state = session.state();
                (state.mode, state.model.clone(), state.conversation_id.clone())
            };
            database::update(tx, &session.id, mode, model.as_deref(), conversation_id.as_deref())
        });
        save.await.map_err(Error::from)
    }
}

fn turns_thread() -> Result<Handle> {
    let fail = |error: std::io::Error| Error::io("start", std::path::Path::new("the turns thread"), error);
    let (built, handle) = std::sync::mpsc::sync_channel(1);
    let thread = std::thread::Builder::new().name("outpost-turns".into());
    // The thread builds its runtime itself. If the thread cannot start (process limit), the closure is dropped here, and
    // dropping a runtime inside another runtime panics.
    let run = move || match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => {
            let _caller_waits = built.send(Ok(runtime.handle().clone()));
            runtime.block_on(std::future::pending::<()>());
        }
        Err(error) => drop(built.send(Err(error))),
    };
    thread.spawn(run).map_err(fail)?;
    handle.recv().unwrap_or_else(|_| Err(std::io::ErrorKind::Other.into())).map_err(fail)
}
