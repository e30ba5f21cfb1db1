//! `outpost serve` where a daemon was stopped and keeps its processes: it goes on with them, and we stay before it.

use crate::paths::Paths;
use crate::serve::Options;
use outpost_control::client::{CallError, Client};
use outpost_control::wire::{Status, UpgradeBinary};
use outpost_sys::epoll::wait_any_readable;
use outpost_sys::identity::Identity;
use outpost_sys::pidfd::{self, Pidfd};
use outpost_sys::signal::{Signal, SignalFd};
use outpost_sys::{Errno, procfs};
use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// How long a worker may take to come back.
const PATIENCE: Duration = Duration::from_secs(15);
const LOOK: Duration = Duration::from_millis(10);

/// How long we wait at a time for the daemon's end: as good as for ever.
const LONG: Duration = Duration::from_secs(3600);

/// Returns when that daemon has ended, or at once where it shall be in the background. None where nobody keeps anything.
pub(crate) fn run(paths: &Paths, options: &Options) -> Result<Option<ExitCode>, String> {
    let Some(kept) = status(paths).filter(|status| status.keeping) else { return Ok(None) };
    refuse_other_flags(&kept, options)?;
    // Before any other thread: they are for the daemon.
    let signals = SignalFd::new(&[Signal::INT, Signal::TERM, Signal::HUP]);
    let signals = signals.map_err(|errno| format!("cannot wait for signals: {errno}"))?;
    let keeper = open_keeper(&kept).map_err(|errno| {
        format!("the daemon that kept its processes (keeper {}) is gone: {errno}", kept.keeper_pid)
    })?;
    if is_other_binary(kept.worker_pid) {
        let path = std::env::current_exe().map_err(|error| error.to_string())?;
        call(paths, "upgrade", &UpgradeBinary { path: path.display().to_string() })?;
        wait_until(paths, |now| now.worker_pid != kept.worker_pid)?;
    }
    call(paths, "serveAgain", &())?;
    let now = wait_until(paths, |now| !now.keeping)?;
    outln!("outpost {} is running again; processes that were kept: {}", now.version, now.running);
    if options.detach {
        return Ok(Some(ExitCode::SUCCESS));
    }
    loop {
        let ready =
            wait_any_readable(&[keeper.as_fd(), signals.as_fd()], LONG).map_err(|errno| errno.to_string())?;
        if ready.first() == Some(&true) {
            return Ok(Some(ExitCode::SUCCESS));
        }
        while let Some(signal) = signals.next() {
            let _gone = pidfd::signal(&keeper, signal);
        }
    }
}

/// Opens the keeper of a daemon that has just answered. One half has started the other, which is checked after the open: a
/// process that got the keeper's pid is no relative of the worker.
fn open_keeper(status: &Status) -> outpost_sys::Result<Pidfd> {
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

fn status(paths: &Paths) -> Option<Status> {
    Client::connect(&paths.control_socket()).ok()?.call("status", &()).ok()
}

/// Whoever is asked may be gone before the answer.
fn call(paths: &Paths, method: &str, params: &impl serde::Serialize) -> Result<(), String> {
    let client = Client::connect(&paths.control_socket());
    let mut client =
        client.map_err(|error| format!("the daemon that kept its processes has ended: {error}"))?;
    match client.call::<()>(method, params) {
        Ok(()) | Err(CallError::Lost(_)) => Ok(()),
        Err(CallError::Refused(failure)) => Err(failure.message),
    }
}

fn wait_until(paths: &Paths, is_so: impl Fn(&Status) -> bool) -> Result<Status, String> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match status(paths).filter(&is_so) {
            Some(status) => return Ok(status),
            None if Instant::now() < deadline => std::thread::sleep(LOOK),
            None => return Err("the daemon that kept its processes does not come back; see its log".into()),
        }
    }
}

/// Whether the daemon runs another program than this one.
pub(crate) fn is_other_binary(worker: u32) -> bool {
    let id = |path: String| fs::metadata(path).ok().map(|found| (found.dev(), found.ino()));
    let its = id(format!("/proc/{worker}/exe"));
    its.is_some() && its != id("/proc/self/exe".into())
}
