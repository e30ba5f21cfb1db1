//! `outpost serve`: takes the lock, writes the keeper's first state, and becomes the keeper.

use crate::paths::Paths;
use crate::{broker_face, roles, sessions_face};
use clap::Args;
use outpost_keeper::state::{State, StoredEntry};
use outpost_keeper::{OWN_SLOT, Standing};
use outpost_sys::file::{self, Open};
use outpost_sys::{limits, spawn};
use std::ffi::{CStr, CString};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The daemon is the last to go when memory runs out: everything else can be started again by it.
const OOM_SCORE: i32 = -900;

#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// Offer the exec face as a websocket on this loopback address too, for those who have its token
    #[arg(long, value_name = "IP:PORT")]
    exec_websocket: Option<SocketAddr>,
    #[command(flatten)]
    sessions: sessions_face::Flags,
    #[command(flatten)]
    broker: broker_face::Flags,
}

impl Options {
    /// Of a daemon that has the sessions face alone.
    pub(crate) fn codecast(sessions: sessions_face::Flags) -> Options {
        Options { exec_websocket: None, sessions, broker: broker_face::Flags::default() }
    }

    /// What the worker is told of them, last of all.
    pub(crate) fn arguments(&self) -> Vec<CString> {
        let websocket = self.exec_websocket.map(|at| format!("--exec-websocket={at}"));
        let websocket = websocket.and_then(|flag| CString::new(flag).ok());
        let faces = self.sessions.arguments().into_iter().chain(self.broker.clone().absolute().arguments());
        websocket.into_iter().chain(faces).collect()
    }

    /// What the daemon's processes are called, for those who look for them.
    fn name(&self) -> &'static CStr {
        if self.sessions.codecast { c"codecast-daemon" } else { c"outpost" }
    }
}

/// Why there is no daemon.
pub(crate) enum NotServing {
    /// There is one already; says which.
    Taken(String),
    Failed(String),
}

impl NotServing {
    pub(crate) fn reason(self) -> String {
        match self {
            NotServing::Taken(reason) | NotServing::Failed(reason) => reason,
        }
    }
}

impl From<String> for NotServing {
    fn from(reason: String) -> NotServing {
        NotServing::Failed(reason)
    }
}

/// Only returns when the daemon could not be started.
pub(crate) fn serve(paths: &Paths, options: &Options) -> NotServing {
    match prepare(paths, options) {
        Ok((state, binary)) => become_keeper(&state, &binary, options.name()).into(),
        Err(why) => why,
    }
}

fn prepare(paths: &Paths, options: &Options) -> Result<(OwnedFd, OwnedFd), NotServing> {
    paths.create()?;
    let lock = take_lock(&paths.lock())?;
    let binary = file::open("/proc/self/exe", Open::Program)
        .map_err(|errno| format!("cannot open this program: {errno}"))?;
    let mut arguments = worker_arguments(paths, options.name())?;
    arguments.extend(options.arguments());
    // Here, where somebody reads what is wrong.
    options.broker.clone().absolute().load()?;
    let own = StoredEntry {
        slot: OWN_SLOT,
        pid: 0,
        standing: Standing::Running,
        pidfd: -1,
        held: vec![(roles::LOCK, lock.as_raw_fd())],
        report: -1,
    };
    let state =
        State { binary: binary.as_raw_fd(), arguments, worker: None, replaced: false, entries: vec![own] };
    let hand_over = || -> outpost_sys::Result<OwnedFd> {
        file::empty_stdin()?;
        file::close_on_exec_from(3)?;
        file::set_inherited(&lock, true)?;
        file::set_inherited(&binary, true)?;
        let state = file::sealed_memory("outpost-keeper", &state.encode())?;
        file::set_inherited(&state, true)?;
        Ok(state)
    };
    let state = hand_over().map_err(|errno| format!("cannot prepare the keeper: {errno}"))?;
    // Held by the keeper from here on, by its number.
    std::mem::forget(lock);
    Ok((state, binary))
}

/// The worker's command line. Raises our own limits, which the keeper and the worker inherit, and says what they were.
pub(crate) fn worker_arguments(paths: &Paths, name: &CStr) -> Result<Vec<CString>, String> {
    let descriptors = limits::raise_descriptors().unwrap_or_else(|_| limits::descriptors());
    let oom_score = limits::oom_score();
    let shielded = limits::set_oom_score(OOM_SCORE).is_ok();
    let mut arguments = vec![
        name.to_owned(),
        c"worker".to_owned(),
        c"--state-dir".to_owned(),
        c_string(&paths.state)?,
        c"--runtime-dir".to_owned(),
        c_string(&paths.runtime)?,
    ];
    let number = |limit: Option<u64>| limit.map_or("unlimited".to_owned(), |limit| limit.to_string());
    let given = [("--descriptors", format!("{}:{}", number(descriptors.soft), number(descriptors.hard)))];
    let score = shielded.then(|| ("--oom-score", oom_score.to_string()));
    for (flag, value) in given.into_iter().chain(score) {
        arguments.extend(CString::new(format!("{flag}={value}")));
    }
    Ok(arguments)
}

fn c_string(path: &Path) -> Result<CString, String> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| format!("{} contains a zero byte", path.display()))
}

/// Two daemons must not share sockets and journals.
pub(crate) fn take_lock(path: &Path) -> Result<OwnedFd, NotServing> {
    let fail = |errno| format!("{}: {errno}", path.display());
    let lock = file::open(path, Open::Create).map_err(fail)?;
    if !file::try_lock(&lock).map_err(fail)? {
        let owner = std::fs::read_to_string(path).unwrap_or_default();
        return Err(NotServing::Taken(format!(
            "outpost is already running here (keeper {}); `outpost status` shows it",
            owner.trim()
        )));
    }
    file::set_size(&lock, 0).map_err(fail)?;
    file::write_all_at(&lock, format!("{}\n", std::process::id()).as_bytes(), 0).map_err(fail)?;
    Ok(lock)
}

fn become_keeper(state: &OwnedFd, binary: &OwnedFd, name: &CStr) -> String {
    let number = CString::new(state.as_raw_fd().to_string()).unwrap_or_default();
    let environment = spawn::own_environment();
    let environment: Vec<_> = environment.iter().map(CString::as_c_str).collect();
    let errno = spawn::replace_self(binary.as_fd(), &[name, c"keeper", c"--state", &number], &environment);
    format!("cannot become the keeper: {errno}")
}
