//! `outpost kill` and `upgrade`.

use super::{Outcome, connect, explain, print};
use crate::paths::Paths;
use clap::Args;
use outpost_control::client::CallError;
use outpost_control::wire::{self, Killed, Status};
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
