//! `outpost serve` where a daemon was stopped and keeps its processes: it goes on with them, and we stay in front of it.

use crate::paths::Paths;
use crate::serve::{self, NotServing, Options};
use outpost_control::client::{CallError, Client};
use outpost_control::wire::{Status, UpgradeBinary};
use outpost_sys::epoll::{wait_any_readable, wait_readable};
use outpost_sys::identity::Identity;
use outpost_sys::pidfd::{self, Pidfd};
use outpost_sys::signal::{Signal, SignalFd};
use outpost_sys::{Errno, procfs};
use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// How long a worker may take to come back, and a daemon that is ending to be gone.
const PATIENCE: Duration = Duration::from_secs(15);
const LOOK: Duration = Duration::from_millis(10);

/// How long a daemon that runs may take to answer.
const STATUS_PATIENCE: Duration = Duration::from_secs(5);

/// How long we wait at a time for the daemon's end: as good as for ever.
const LONG: Duration = Duration::from_secs(3600);

/// For the daemon while we are in front of it.
const PASSED_ON: [Signal; 3] = [Signal::INT, Signal::TERM, Signal::HUP];

/// What the daemon that has the lock does.
enum Found {
    /// It kept its processes, and has gone on with them: until it ended, or in the background.
    WentOn(ExitCode),
    Serving,
    /// It has no socket, or takes no orders: it is ending, or only beginning.
    Absent,
}

/// Starts a daemon, or goes on with the one that keeps its processes here. That one ends with its last process, also while
/// it is asked to go on: its lock is waited for then.
pub(crate) fn serve(paths: &Paths, options: &Options) -> Result<ExitCode, NotServing> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let reason = match serve::serve(paths, options) {
            Err(NotServing::Taken(reason)) => reason,
            served => return served.map(|()| ExitCode::SUCCESS),
        };
        match go_on(paths, options)? {
            Found::WentOn(code) => return Ok(code),
            Found::Absent if Instant::now() < deadline => std::thread::sleep(LOOK),
            Found::Absent | Found::Serving => return Err(NotServing::Taken(reason)),
        }
    }
}

fn go_on(paths: &Paths, options: &Options) -> Result<Found, String> {
    let kept = match status(paths) {
        Ok(status) if status.keeping => status,
        Err(error) if error.is_gone() => return Ok(Found::Absent),
        Ok(_) | Err(_) => return Ok(Found::Serving),
    };
    refuse_other_flags(&kept, options)?;
    let keeper = match open_keeper(&kept) {
        Ok(keeper) => keeper,
        Err(Errno::SRCH) => return Ok(Found::Absent),
        Err(errno) => return Err(format!("cannot open the keeper {}: {errno}", kept.keeper_pid)),
    };
    // Before any other thread: they are for the daemon.
    let signals = SignalFd::new(&PASSED_ON).map_err(|errno| format!("cannot wait for signals: {errno}"))?;
    let Some(now) = wake(paths, &kept, &keeper)? else {
        signals.release(&PASSED_ON);
        return Ok(Found::Absent);
    };
    outln!("outpost {} is running again; processes that were kept: {}", now.version, now.running);
    if options.detach {
        return Ok(Found::WentOn(ExitCode::SUCCESS));
    }
    loop {
        let ready =
            wait_any_readable(&[keeper.as_fd(), signals.as_fd()], LONG).map_err(|errno| errno.to_string())?;
        if ready.first() == Some(&true) {
            return Ok(Found::WentOn(ExitCode::SUCCESS));
        }
        while let Some(signal) = signals.next() {
            let _gone = pidfd::signal(&keeper, signal);
        }
    }
}

/// Has the daemon begin its faces again, with this binary. None when it ended instead.
fn wake(paths: &Paths, kept: &Status, keeper: &Pidfd) -> Result<Option<Status>, String> {
    if is_other_binary(kept.worker_pid) {
        let path = std::env::current_exe().map_err(|error| error.to_string())?;
        let upgrade = UpgradeBinary { path: path.display().to_string() };
        if !call(paths, "upgrade", &upgrade)?
            || wait_until(paths, keeper, |now| now.worker_pid != kept.worker_pid)?.is_none()
        {
            return Ok(None);
        }
    }
    match call(paths, "serveAgain", &())? {
        true => wait_until(paths, keeper, |now| !now.keeping),
        false => Ok(None),
    }
}

/// Opens the keeper of a daemon that has just answered. One half has started the other, which is checked after the open: a
/// process that got the keeper's pid is no relative of the worker.
pub(crate) fn open_keeper(status: &Status) -> outpost_sys::Result<Pidfd> {
    let stat = |pid: u32| procfs::stat(pid.cast_signed()).ok_or(Errno::SRCH);
    let identity = Identity::of(&stat(status.keeper_pid)?);
    let keeper = identity.open()?;
    let (now, worker) = (stat(status.keeper_pid)?, stat(status.worker_pid)?);
    let is_keeper = identity.is(&now) && (worker.parent == now.pid || now.parent == worker.pid);
    if is_keeper { Ok(keeper) } else { Err(Errno::SRCH) }
}

/// It goes on with the flags that it has: others would be ignored.
fn refuse_other_flags(kept: &Status, options: &Options) -> Result<(), String> {
    let wanted: Vec<String> =
        options.arguments().iter().map(|flag| flag.to_string_lossy().into_owned()).collect();
    // Before those of the faces there are the directories and limits, which every daemon has.
    let common = |flag: &&String| flag.starts_with("--descriptors=") || flag.starts_with("--oom-score=");
    let first = kept.arguments.iter().rposition(|flag| common(&flag)).map_or(0, |at| at + 1);
    let its = kept.arguments.get(first..).unwrap_or_default();
    // Nobody's flag: one that was begun in the background goes on with the log that it has.
    let its: Vec<&str> =
        its.iter().map(String::as_str).filter(|flag| !flag.starts_with("--log-file=")).collect();
    match its == wanted {
        true => Ok(()),
        false => Err(format!(
            "the daemon that keeps its processes here was started with other flags ({}); start it with the same, or end it with `outpost stop`",
            if its.is_empty() { "none".into() } else { its.join(" ").escape_debug().to_string() }
        )),
    }
}

fn status(paths: &Paths) -> Result<Status, CallError> {
    let mut client = Client::connect(&paths.control_socket())?;
    client.set_patience(Some(STATUS_PATIENCE))?;
    client.call("status", &())
}

/// False when the daemon is ending and has not done it. A worker that has done it may be gone before its answer arrives.
fn call(paths: &Paths, method: &str, params: &impl serde::Serialize) -> Result<bool, String> {
    let Ok(mut client) = Client::connect(&paths.control_socket()) else { return Ok(false) };
    match client.call::<()>(method, params) {
        Ok(()) | Err(CallError::Lost(_)) => Ok(true),
        Err(error) if error.is_gone() => Ok(false),
        Err(error) => Err(error.to_string()),
    }
}

/// None when the daemon has ended.
fn wait_until(
    paths: &Paths,
    keeper: &Pidfd,
    is_so: impl Fn(&Status) -> bool,
) -> Result<Option<Status>, String> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(status) = status(paths).ok().filter(&is_so) {
            return Ok(Some(status));
        }
        if wait_readable(keeper, LOOK).map_err(|errno| errno.to_string())? {
            return Ok(None);
        }
        if Instant::now() > deadline {
            return Err("the daemon that kept its processes does not come back; see its log".into());
        }
    }
}

/// Whether the daemon runs another program than this one.
pub(crate) fn is_other_binary(worker: u32) -> bool {
    let id = |path: String| fs::metadata(path).ok().map(|found| (found.dev(), found.ino()));
    let its = id(format!("/proc/{worker}/exe"));
    its.is_some() && its != id("/proc/self/exe".into())
}
