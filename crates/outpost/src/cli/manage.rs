//! `outpost kill`, `upgrade`, `stop`.

use super::{Outcome, connect, explain, print};
use crate::paths::Paths;
use clap::Args;
use outpost_control::client::CallError;
use outpost_control::wire::{self, Kept, Killed, Status};
use outpost_sys::{epoll, pidfd};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

#[derive(Args)]
pub(super) struct Kill {
    /// The id, the number or the address (FACE/SCOPE/ID) of the process
    process: String,
    /// The signal to begin with
    #[arg(short, long, default_value = "TERM")]
    signal: String,
    /// How long it may take before everything it started is killed
    #[arg(long, default_value_t = 3000, value_name = "MS")]
    grace_ms: u64,
}

pub(super) fn kill(paths: &Paths, options: &Kill) -> Outcome {
    let params = wire::Kill {
        process: options.process.clone(),
        signal: Some(options.signal.clone()),
        grace_ms: Some(options.grace_ms),
    };
    let killed: Killed = connect(paths)?.call("kill", &params).map_err(explain)?;
    print(&format!("{}\n", ending(&killed)))?;
    Ok(if killed.died { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What came of it, in words.
pub(super) fn ending(killed: &Killed) -> String {
    match killed {
        Killed { already_exited: true, .. } => "had ended already".to_owned(),
        Killed { died: true, escalated: false, .. } => "ended".to_owned(),
        Killed { died: true, .. } => {
            "did not end by itself and was killed with everything it started".to_owned()
        }
        Killed { survivors, .. } => format!("still there; {survivors} descendants survive"),
    }
}

#[derive(Args)]
pub(super) struct UpgradeTo {
    /// The new binary
    #[arg(long, value_name = "PATH")]
    binary: PathBuf,
}

/// How long a new worker may take to answer.
const UPGRADE_PATIENCE: Duration = Duration::from_secs(15);

pub(super) fn upgrade(paths: &Paths, options: &UpgradeTo) -> Outcome {
    let status = replace_binary(paths, &options.binary)?;
    print(&format!("upgraded: outpost {}, {} kept\n", status.version, processes(status.running)))
}

fn processes(count: usize) -> String {
    if count == 1 { "1 process".into() } else { format!("{count} processes") }
}

/// Returns when a worker of the new binary answers.
pub(super) fn replace_binary(paths: &Paths, binary: &Path) -> Result<Status, String> {
    let before: Status = connect(paths)?.call("status", &()).map_err(explain)?;
    let path = std::path::absolute(binary).map_err(|error| error.to_string())?;
    let params = wire::UpgradeBinary { path: path.display().to_string() };
    match connect(paths)?.call::<()>("upgrade", &params) {
        Err(CallError::Refused(failure)) => return Err(failure.message),
        // The worker that was asked is gone by the time it could answer.
        Ok(()) | Err(CallError::Lost(_)) => {}
    }
    let deadline = Instant::now() + UPGRADE_PATIENCE;
    loop {
        let now = connect(paths).and_then(|mut client| client.call::<Status>("status", &()).map_err(explain));
        match now {
            Ok(status) if status.worker_pid != before.worker_pid => return Ok(status),
            Ok(_) | Err(_) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(20)),
            Ok(_) => return Err("the old worker is still the one that answers; see the daemon's log".into()),
            Err(reason) => return Err(reason),
        }
    }
}

/// How long processes may take to end, and the daemon after them.
const STOP_PATIENCE: Duration = Duration::from_secs(30);

/// End the daemon and every process.
#[derive(Args)]
pub(super) struct Stop {
    /// Let processes run on, with their input and output; the next `outpost serve` has them
    ///
    /// What listens for clients ends. Keeper and worker stay, for the processes only, and end with the last of them;
    /// `ps`, `logs`, `attach` and `kill` still reach them.
    #[arg(long)]
    keep_children: bool,
}

/// Returns when the daemon is gone and another can begin, or when it serves nobody any more.
pub(super) fn stop(paths: &Paths, options: &Stop) -> Outcome {
    if options.keep_children {
        return keep_children(paths);
    }
    let mut client = connect(paths)?;
    let status: Status = client.call("status", &()).map_err(explain)?;
    // Before they are told to: then the numbers are still theirs.
    let halves = Halves::of(paths, &status);
    match client.call::<()>("stop", &()) {
        Ok(()) | Err(CallError::Lost(_)) => {}
        Err(error) => return Err(explain(error)),
    }
    let deadline = Instant::now() + STOP_PATIENCE;
    while !halves.have_ended(paths)? {
        if Instant::now() > deadline {
            return Err(format!(
                "the daemon (keeper {}) was told to end and has not after {} s; its log says what it waits for",
                status.keeper_pid,
                STOP_PATIENCE.as_secs()
            ));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// How long is waited for an end at a time.
const LOOK: Duration = Duration::from_millis(20);

/// The two processes of a daemon that is told to end.
enum Halves {
    Here(Vec<OwnedFd>),
    /// Their numbers say nothing here: it has ended when nobody answers, while there is a way to it.
    Elsewhere,
}

impl Halves {
    fn of(paths: &Paths, status: &Status) -> Halves {
        let pids = [status.keeper_pid, status.worker_pid];
        match paths.host {
            None => Halves::Here(pids.iter().flat_map(|pid| pidfd::open(pid.cast_signed())).collect()),
            Some(_) => Halves::Elsewhere,
        }
    }

    /// Looks for a moment.
    fn have_ended(&self, paths: &Paths) -> Result<bool, String> {
        match self {
            Halves::Here(processes) => {
                let ended = processes.iter().map(|process| epoll::wait_readable(process, LOOK));
                ended
                    .collect::<Result<Vec<_>, _>>()
                    .map(|all| all.into_iter().all(|ended| ended))
                    .map_err(|errno| errno.to_string())
            }
            Halves::Elsewhere => {
                let answers = connect(paths)
                    .and_then(|mut client| client.call::<Status>("status", &()).map_err(explain))
                    .is_ok();
                std::thread::sleep(LOOK);
                Ok(!answers && !paths.is_away())
            }
        }
    }
}

fn keep_children(paths: &Paths) -> Outcome {
    let mut client = connect(paths)?;
    let before: Status = client.call("status", &()).map_err(explain)?;
    let halves = Halves::of(paths, &before);
    let has_none = match client.call::<Kept>("keepChildren", &()) {
        Ok(kept) => kept.processes == 0,
        Err(CallError::Lost(_)) => false,
        Err(error) => return Err(explain(error)),
    };
    // Between two workers nobody answers either, which is all that can be seen from elsewhere.
    let may_end = paths.host.is_none() || has_none;
    let deadline = Instant::now() + STOP_PATIENCE;
    loop {
        let now = connect(paths).and_then(|mut client| client.call::<Status>("status", &()).map_err(explain));
        match now {
            Ok(status) if status.keeping => {
                let running = status.running;
                return print(&format!(
                    "stopped; still running: {running}; `outpost serve` goes on with them\n"
                ));
            }
            // There was nobody to stay for.
            _ if may_end && halves.have_ended(paths)? => {
                return print("stopped; no process was running\n");
            }
            _ if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(20)),
            _ => return Err("the daemon was told to end and has not; its log says what it waits for".into()),
        }
    }
}
