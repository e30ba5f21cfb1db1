//! `outpost kill`, `upgrade`, `stop`.

use super::{Outcome, connect, explain};
use crate::paths::Paths;
use clap::Args;
use outpost_control::client::CallError;
use outpost_control::wire::{self, Kept, Killed, Status};
use outpost_sys::{epoll, pidfd};
use std::path::PathBuf;
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
    println!("{}", ending(&killed));
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
    let before: Status = connect(paths)?.call("status", &()).map_err(explain)?;
    let path = std::path::absolute(&options.binary).map_err(|error| error.to_string())?;
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
            Ok(status) if status.worker_pid != before.worker_pid => {
                println!("upgraded: outpost {}, {} processes kept", status.version, status.running);
                return Ok(ExitCode::SUCCESS);
            }
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
    let daemon = [status.keeper_pid, status.worker_pid].map(|pid| pidfd::open(pid.cast_signed()));
    match client.call::<()>("stop", &()) {
        Ok(()) | Err(CallError::Lost(_)) => {}
        Err(error) => return Err(explain(error)),
    }
    let deadline = Instant::now() + STOP_PATIENCE;
    for process in daemon.into_iter().flatten() {
        let left = deadline.saturating_duration_since(Instant::now());
        if !epoll::wait_readable(process, left).map_err(|errno| errno.to_string())? {
            return Err(format!(
                "the daemon (keeper {}) was told to end and has not after {} s; its log says what it waits for",
                status.keeper_pid,
                STOP_PATIENCE.as_secs()
            ));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn keep_children(paths: &Paths) -> Outcome {
    let mut client = connect(paths)?;
    let before: Status = client.call("status", &()).map_err(explain)?;
    let keeper = pidfd::open(before.keeper_pid.cast_signed()).map_err(|errno| errno.to_string())?;
    match client.call::<Kept>("keepChildren", &()) {
        Ok(_) | Err(CallError::Lost(_)) => {}
        Err(error) => return Err(explain(error)),
    }
    let deadline = Instant::now() + STOP_PATIENCE;
    loop {
        let now = connect(paths).and_then(|mut client| client.call::<Status>("status", &()).map_err(explain));
        match now {
            Ok(status) if status.keeping => {
                println!("stopped; still running: {}; `outpost serve` goes on with them", status.running);
                return Ok(ExitCode::SUCCESS);
            }
            // There was nobody to stay for.
            _ if epoll::wait_readable(&keeper, Duration::ZERO).unwrap_or(true) => {
                println!("stopped; no process was running");
                return Ok(ExitCode::SUCCESS);
            }
            _ if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(20)),
            _ => return Err("the daemon was told to end and has not; its log says what it waits for".into()),
        }
    }
}
