//! What all requests share: the sessions, the engine, the books, and what the host has.

use crate::agents::{Cli, Mode};
use crate::clis::Clis;
use crate::confine::Sandbox;
use crate::kept::{self, Waiting};
use crate::made_files::MadeFiles;
use crate::memory::Memory;
use crate::records::{self, NewSession};
use crate::session::{self, Accepted, Created, Session, State, Stop};
use crate::settings::Settings;
use crate::shutdown::Shutdown;
use crate::{Error, FACE, Result, ending, mark, starting, turn};
use outpost_approvals::{Approvals, Ledger};
use outpost_engine::{Engine, Process};
use outpost_sandbox::Probed;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::sync::watch;

/// How long a client may take to read the end of a session that was destroyed.
const LAST_READ_PATIENCE: Duration = Duration::from_secs(60);

/// The face.
pub struct Face {
    pub(crate) engine: Engine,
    pub(crate) approvals: Approvals,
    settings: watch::Sender<Arc<Settings>>,
    pub(crate) clis: Arc<Clis>,
    pub(crate) began: Instant,
    pub(crate) memory: Memory,
    /// What questions of all sessions take.
    pub(crate) asked: crate::room::All,
    /// Processes that wait for the next message.
    pub(crate) kept: Waiting,
    sessions: Mutex<HashMap<String, Arc<Session>>>,
    /// Those of them that somebody runs turns of.
    driven: Mutex<HashMap<String, Arc<Session>>>,
    /// Turns run on a thread of their own: taking apart what agents write keeps no request waiting.
    turns: Handle,
    pub(crate) host: Probed,
    pub(crate) made_files: MadeFiles,
    pub(crate) shutdown: Shutdown,
}

impl Face {
    /// Goes on with everything that an earlier worker knew.
    pub async fn begin(engine: Engine, approvals: Approvals, settings: Settings) -> Result<Arc<Face>> {
        let turns = turns_thread()?;
        let clis = Arc::new(Clis::new(&settings));
        let face = Arc::new(Face {
            engine,
            approvals,
            clis,
            began: Instant::now(),
            memory: Memory::default(),
            asked: crate::room::All::default(),
            kept: Waiting::default(),
            sessions: Mutex::default(),
            driven: Mutex::default(),
            turns,
            made_files: MadeFiles::default(),
            host: Probed::new(settings.state.clone()),
            shutdown: Shutdown::default(),
            settings: watch::Sender::new(Arc::new(settings)),
        });
        let dir = face.settings().dir.clone();
        let known = face.books().write(move |books| records::load(books, &dir)).await?;
        // So that somebody knows when asked.
        face.clis.all();
        for session in known {
            face.sessions().insert(session.id.clone(), Arc::new(session));
        }
        let left = face.left_over().await;
        for session in face.all() {
            face.drive(&session);
        }
        let sweeping = face.clone();
        tokio::spawn(async move { sweeping.sweep(left).await });
        tokio::spawn(kept::end_idle(face.clone()));
        Ok(face)
    }

    /// Processes that no turn will ask for: of sessions that were destroyed by a worker which did not live to see it done,
    /// and such that waited for a message. A process that cannot be taken over yet is left to the next worker: clients do not
    /// wait for it.
    async fn left_over(&self) -> Vec<Process> {
        let mut left = self.engine.list_known().await;
        left.retain(|process| {
            let key = process.key();
            let is_ours = key.face == FACE && process.status().exit().is_none();
            is_ours && self.session(&key.scope).is_none_or(|session| !mark::needs(&session, &key.id))
        });
        left
    }

    /// Ends and erases what is left of a worker before this one.
    async fn sweep(&self, processes: Vec<Process>) {
        for process in processes {
            ending::end(&process).await;
        }
        let is_known = |id: &str| self.session(id).is_some();
        let dir = self.settings().dir.clone();
        let names = tokio::task::spawn_blocking(move || {
            let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
            entries.map(|entry| entry.path()).collect::<Vec<PathBuf>>()
        });
        for path in names.await.unwrap_or_default() {
            let id = path.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
            // Nothing but what we made: a name of ours is a uuid.
            if uuid::Uuid::parse_str(&id).is_ok() && !is_known(&id) {
                let _erased = tokio::task::spawn_blocking(move || std::fs::remove_dir_all(path)).await;
            }
        }
    }

    /// What holds for what begins now.
    pub(crate) fn settings(&self) -> Arc<Settings> {
        self.settings.borrow().clone()
    }

    /// What the operator has decided meanwhile.
    pub fn configure(&self, settings: Settings) {
        self.clis.name(&settings);
        self.settings.send_replace(Arc::new(settings));
    }

    pub(crate) fn books(&self) -> &Ledger {
        self.approvals.ledger()
    }

    fn sessions(&self) -> MutexGuard<'_, HashMap<String, Arc<Session>>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn session(&self, id: &str) -> Option<Arc<Session>> {
        self.sessions().get(id).cloned()
    }

    /// All of them, oldest first.
    pub(crate) fn all(&self) -> Vec<Arc<Session>> {
        let mut all: Vec<Arc<Session>> = self.sessions().values().cloned().collect();
        all.sort_by_key(|session| session.created.order);
        all
    }

    fn driven(&self) -> MutexGuard<'_, HashMap<String, Arc<Session>>> {
        self.driven.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many sessions there are, and how many of them are answering. Looks only at those that may be.
    pub fn counts(&self) -> (usize, usize) {
        let busy = self.driven().values().filter(|session| session.state().is_busy()).count();
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
        let order = self.books().write(move |books| records::insert(books, &new)).await?;
        let (created, state) = (Created { at, order }, State::new(mode, model, at));
        let dir = self.settings().dir.join(&id);
        let session = Session::new(id.clone(), path, cli, created, dir, sandbox, state);
        self.sessions().insert(id.clone(), Arc::new(session));
        Ok(id)
    }

    pub(crate) fn is_full(&self) -> bool {
        self.sessions().len() >= self.settings().sessions_max
    }

    /// Takes a message in and sees to it that it is answered, whoever is there to hear it.
    pub(crate) async fn send(self: &Arc<Face>, session: &Arc<Session>, message: &str) -> Result<Accepted> {
        let accepted = session.accept(message);
        let (Accepted::Live { turn } | Accepted::Queued { turn, .. }) = accepted else { return Ok(accepted) };
        let (id, text, active) = (session.id.clone(), message.to_owned(), session.state().active);
        let entered = self.books().write(move |books| records::insert_turn(books, &id, turn, &text, active));
        let written = entered.await;
        session.entered(turn, written.is_ok());
        match written {
            // It was destroyed while the message was on its way into the books.
            Err(_) if session.state().is_destroyed => return Ok(Accepted::Gone),
            written => written?,
        }
        self.drive(session);
        Ok(accepted)
    }

    /// Runs the turns of a session if nobody does.
    fn drive(self: &Arc<Face>, session: &Arc<Session>) {
        if !self.shutdown.is_stopping()
            && let Some(first) = session.drive()
        {
            self.driven().insert(session.id.clone(), session.clone());
            let (face, session) = (self.clone(), session.clone());
            self.turns.spawn(turn::drive(face, session, first));
        }
    }

    /// Sessions whose turns run.
    pub(crate) fn running(&self) -> Vec<Arc<Session>> {
        self.driven().values().cloned().collect()
    }

    /// Nobody runs its turns any more.
    pub(crate) fn rests(&self, session: &Session) {
        let mut driven = self.driven();
        // Somebody may have begun again meanwhile.
        if !session.state().is_driven {
            driven.remove(&session.id);
        }
    }

    /// Ends what a session does now and what waits. Whether there was anything.
    pub(crate) async fn interrupt(&self, session: &Session) -> Result<bool> {
        let found = session.interrupt(Stop::Interrupted);
        if found {
            let id = session.id.clone();
            self.books().write(move |books| records::cancel_turns(books, &id)).await?;
        }
        Ok(found)
    }

    /// Ends a session with everything it runs, and forgets it. Returns when nothing of it runs any more.
    pub(crate) async fn destroy(&self, id: &str) -> Result<bool> {
        let Some(session) = self.sessions().remove(id) else { return Ok(false) };
        session.interrupt(Stop::Destroyed);
        let deleted = id.to_owned();
        self.books().write(move |books| records::delete(books, &deleted)).await?;
        let open: Vec<u64> = session.state().turns.iter().rev().take(2).map(|turn| turn.number).collect();
        for turn in open {
            let process = starting::key(&session, mark::process_of(&session, turn));
            if let Some(process) = self.engine.find(&process).await {
                ending::end(&process).await;
            }
        }
        let mut changes = session.changes();
        drop(changes.wait_for(|_| !session.state().is_driven).await);
        kept::end(self, &session).await;
        // Whoever still reads has the end to come; so has a message that was on its way into the books.
        tokio::spawn(async move {
            let read = changes.wait_for(|_| session.state().is_at_rest());
            drop(tokio::time::timeout(LAST_READ_PATIENCE, read).await);
            let dir = session.dir.clone();
            let _erased = tokio::task::spawn_blocking(move || std::fs::remove_dir_all(dir)).await;
        });
        Ok(true)
    }

    /// Writes down how a session stands after it was changed.
    pub(crate) async fn save(&self, session: &Arc<Session>) -> Result<()> {
        let session = session.clone();
        let save = self.books().write(move |books| {
            // As it stands when it is written: who changes it meanwhile is not undone.
            let (mode, model, sdk_id) = {
                let state = session.state();
                (state.mode, state.model.clone(), state.sdk_id.clone())
            };
            records::update(books, &session.id, mode, model.as_deref(), sdk_id.as_deref())
        });
        save.await.map_err(Error::from)
    }
}

fn turns_thread() -> Result<Handle> {
    let fail = |error: std::io::Error| Error::io("start", std::path::Path::new("the thread of turns"), error);
    let (built, handle) = std::sync::mpsc::sync_channel(1);
    let thread = std::thread::Builder::new().name("outpost-turns".into());
    // Built on the thread: at the process limit the closure is dropped here, and dropping a runtime inside another panics.
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
