//! `outpost kill` and `outpost upgrade`.

use super::{Outcome, connect, explain, print};
use crate::paths::Paths;
use clap::Args;
use outpost_control::client::CallError;
use outpost_control::wire::{self, Killed, Status};
use outpost_sys::signal::Signal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

#[derive(Args)]
pub(super) struct Kill {
    /// Id, number or address (FACE/SCOPE/ID) of the process
    process: String,
    /// First signal
    #[arg(short, long, default_value = "TERM")]
    signal: String,
    /// Milliseconds before the process and its descendants get SIGKILL
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
    let text = outcome_text(&killed, &options.signal);
    print(&format!("{}: {text}\n", options.process.escape_debug()))?;
    Ok(if killed.died { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The outcome of a kill that began with this signal.
pub(super) fn outcome_text(killed: &Killed, signal: &str) -> String {
    match killed {
        Killed { already_exited: true, .. } => "already exited".to_owned(),
        Killed { died: true, escalated: false, .. } => format!("terminated ({})", signal_name(signal)),
        Killed { died: true, .. } => {
            format!("killed with its descendants (SIGKILL): it did not exit on {}", signal_name(signal))
        }
        Killed { survivors, .. } => format!("still running; {survivors} descendants survived SIGKILL"),
    }
}

/// `SIGTERM` for `TERM`, `SIGTERM` and `15`.
fn signal_name(text: &str) -> String {
    let signal = Signal::from_name(text).or_else(|| Signal::from_number(text.parse().ok()?));
    match signal.and_then(Signal::name) {
        Some(name) => format!("SIG{name}"),
        None => format!("signal {}", text.escape_debug()),
    }
}

#[derive(Args)]
pub(super) struct UpgradeTo {
    /// Path of the new binary
    #[arg(long, value_name = "PATH")]
    binary: PathBuf,
}

/// How long the new worker may take to reply.
const UPGRADE_TIMEOUT: Duration = Duration::from_secs(15);

pub(super) fn upgrade(paths: &Paths, options: &UpgradeTo) -> Outcome {
    let status = replace_binary(paths, &options.binary)?;
    print(&format!("upgraded: outpost {}, {} kept\n", status.version, processes(status.running)))
}

fn processes(count: usize) -> String {
    if count == 1 { "1 process".into() } else { format!("{count} processes") }
}

/// Replaces the daemon's binary and waits until a worker of the new binary replies.
pub(super) fn replace_binary(paths: &Paths, binary: &Path) -> Result<Status, String> {
    let before: Status = connect(paths)?.call("status", &()).map_err(explain)?;
    let path = std::path::absolute(binary).map_err(|error| error.to_string())?;
    let params = wire::UpgradeBinary { path: path.display().to_string() };
    match connect(paths)?.call::<()>("upgrade", &params) {
        Err(CallError::Refused(failure)) => return Err(failure.message),
        // The old worker may exit before its reply is sent.
        Ok(()) | Err(CallError::Lost(_)) => {}
    }
    let deadline = Instant::now() + UPGRADE_TIMEOUT;
    // A new worker whose faces fail is replaced by one of the old binary.
    let query = wire::StatusQuery { await_faces: true };
    loop {
        let now =
            connect(paths).and_then(|mut client| client.call::<Status>("status", &query).map_err(explain));
        match now {
            Ok(status) if status.worker_pid != before.worker_pid => return Ok(status),
            Ok(_) | Err(_) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(20)),
            Ok(_) => {
                return Err(
                    "the daemon still runs the old worker\nhint: the cause is in the daemon's log".into()
                );
            }
            Err(reason) => return Err(reason),
        }
    }
}
