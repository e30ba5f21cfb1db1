//! `outpost serve` while a stopped daemon keeps its processes: resumes that daemon and forwards signals to it.

use super::serve::{self, ServeError};
use outpost_cli::paths::Paths;
use outpost_cli::remote_bootstrap::is_other_binary;
use outpost_cli::{ServeOptions, outln};
use outpost_control::client::{CallError, Client};
use outpost_control::wire::{Status, UpgradeBinary};
use outpost_sys::epoll::{wait_any_readable, wait_readable};
use outpost_sys::identity::Identity;
use outpost_sys::pidfd::{self, Pidfd};
use outpost_sys::signal::{Signal, SignalFd};
use outpost_sys::{Errno, procfs};
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// How long a worker may take to restart, and an ending daemon to release its lock.
const TIMEOUT: Duration = Duration::from_secs(15);
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// How long a running daemon may take to reply to `status`.
const STATUS_TIMEOUT: Duration = Duration::from_secs(5);

/// One step of the endless wait for the daemon's exit.
const WAIT_STEP: Duration = Duration::from_secs(3600);

/// Signals that this process forwards to the keeper while it runs in the foreground.
const FORWARDED_SIGNALS: [Signal; 3] = [Signal::INT, Signal::TERM, Signal::HUP];

/// The state of the daemon that holds the lock.
enum LockHolder {
    /// It kept its processes and was resumed. With `--detach` it runs in the background; otherwise it has ended.
    Resumed(ExitCode),
    Serving,
    /// It has no socket or takes no commands: it is starting or ending.
    Unavailable,
}

/// Starts a daemon, or resumes the one that keeps its processes. That daemon ends with its last process, possibly while it
/// is being resumed. In that case this function waits for the lock.
pub(crate) fn serve_or_resume(paths: &Paths, options: &ServeOptions) -> Result<ExitCode, ServeError> {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let reason = match serve::serve(paths, options) {
            Err(ServeError::AlreadyRunning(reason)) => reason,
            served => return served.map(|()| ExitCode::SUCCESS),
        };
        match resume(paths, options)? {
            LockHolder::Resumed(code) => return Ok(code),
            LockHolder::Unavailable if Instant::now() < deadline => std::thread::sleep(POLL_INTERVAL),
            LockHolder::Unavailable | LockHolder::Serving => return Err(ServeError::AlreadyRunning(reason)),
        }
    }
}

fn resume(paths: &Paths, options: &ServeOptions) -> Result<LockHolder, String> {
    let kept = match status(paths) {
        Ok(status) if status.keeping => status,
        Err(error) if error.is_gone() => return Ok(LockHolder::Unavailable),
        Ok(_) | Err(_) => return Ok(LockHolder::Serving),
    };
    refuse_other_flags(&kept, options)?;
    let keeper = match open_keeper(&kept) {
        Ok(keeper) => keeper,
        Err(Errno::SRCH) => return Ok(LockHolder::Unavailable),
        Err(errno) => return Err(format!("cannot open the keeper {}: {errno}", kept.keeper_pid)),
    };
    // Block the signals before any other thread starts, since they are for the daemon.
    let signals =
        SignalFd::new(&FORWARDED_SIGNALS).map_err(|errno| format!("cannot wait for signals: {errno}"))?;
    let Some(now) = restart_faces(paths, &kept, &keeper)? else {
        signals.release(&FORWARDED_SIGNALS);
        return Ok(LockHolder::Unavailable);
    };
    outln!("outpost {} is running again; kept processes: {}", now.version, now.running);
    if options.detach {
        return Ok(LockHolder::Resumed(ExitCode::SUCCESS));
    }
    loop {
        let ready = wait_any_readable(&[keeper.as_fd(), signals.as_fd()], WAIT_STEP)
            .map_err(|errno| errno.to_string())?;
        if ready.first() == Some(&true) {
            return Ok(LockHolder::Resumed(ExitCode::SUCCESS));
        }
        while let Some(signal) = signals.next() {
            let _gone = pidfd::signal(&keeper, signal);
        }
    }
}

/// Upgrades the daemon to this binary if needed and restarts its faces. None if the daemon ended instead.
fn restart_faces(paths: &Paths, kept: &Status, keeper: &Pidfd) -> Result<Option<Status>, String> {
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

/// Opens a pidfd of the keeper. Keeper and worker are parent and child in one direction or the other. That is checked after
/// the open, since an unrelated process may have got the keeper's pid.
pub(crate) fn open_keeper(status: &Status) -> outpost_sys::Result<Pidfd> {
    let stat = |pid: u32| procfs::stat(pid.cast_signed()).ok_or(Errno::SRCH);
    let identity = Identity::of(&stat(status.keeper_pid)?);
    let keeper = identity.open()?;
    let (now, worker) = (stat(status.keeper_pid)?, stat(status.worker_pid)?);
    let is_keeper = identity.is(&now) && (worker.parent == now.pid || now.parent == worker.pid);
    if is_keeper { Ok(keeper) } else { Err(Errno::SRCH) }
}

/// A resumed daemon keeps its flags, so different ones are refused instead of ignored.
fn refuse_other_flags(kept: &Status, options: &ServeOptions) -> Result<(), String> {
    let wanted: Vec<String> =
        serve::flag_arguments(options).iter().map(|flag| flag.to_string_lossy().into_owned()).collect();
    // The worker's command line starts with the directories and limits, which every daemon has.
    let common = |flag: &&String| flag.starts_with("--descriptors=") || flag.starts_with("--oom-score=");
    let first = kept.arguments.iter().rposition(|flag| common(&flag)).map_or(0, |at| at + 1);
    let running = kept.arguments.get(first..).unwrap_or_default();
    // `--detach` adds this flag itself.
    let running: Vec<&str> =
        running.iter().map(String::as_str).filter(|flag| !flag.starts_with("--log-file=")).collect();
    match running == wanted {
        true => Ok(()),
        false => Err(format!(
            "the daemon that keeps its processes was started with other flags ({})\n\
             hint: use the same flags, or end that daemon with `outpost stop`",
            if running.is_empty() { "none".into() } else { running.join(" ").escape_debug().to_string() }
        )),
    }
}

fn status(paths: &Paths) -> Result<Status, CallError> {
    let mut client = Client::connect(&paths.control_socket())?;
    client.set_timeout(Some(STATUS_TIMEOUT))?;
    client.call("status", &())
}

/// Returns false if the daemon is stopping and did not run the command. A lost connection counts as success: the worker
/// may exit before its reply arrives.
fn call(paths: &Paths, method: &str, params: &impl serde::Serialize) -> Result<bool, String> {
    let Ok(mut client) = Client::connect(&paths.control_socket()) else { return Ok(false) };
    match client.call::<()>(method, params) {
        Ok(()) | Err(CallError::Lost(_)) => Ok(true),
        Err(error) if error.is_gone() => Ok(false),
        Err(error) => Err(error.to_string()),
    }
}

/// Polls the status until the condition holds. None if the daemon has ended.
fn wait_until(
    paths: &Paths,
    keeper: &Pidfd,
    condition: impl Fn(&Status) -> bool,
) -> Result<Option<Status>, String> {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        if let Some(status) = status(paths).ok().filter(&condition) {
            return Ok(Some(status));
        }
        if wait_readable(keeper, POLL_INTERVAL).map_err(|errno| errno.to_string())? {
            return Ok(None);
        }
        if Instant::now() > deadline {
            return Err("the stopped daemon did not resume in time; see its log".into());
        }
    }
}
